"""LongRoPE: a divisor of its own for every pair.

Formula: theta_k / lambda_k at every window with s > 1, lambda = `factors`, one a rotated pair, fastest first;
logits times 1 + ln s / ln T, the square root of which goes to queries and keys each in other people's code.
s = `factor`, W/T with `auto`.
The divisors are found by a search for each model and length. There are none that fit all, so it is refused
without them.
Paper: Ding et al. 2024, arXiv 2402.13753. The factor on the logits is that of the models published with it
(Phi-3). Departures: no first tokens are left uninterpolated (the paper's n-hat).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.evaluation.extend._base import RefusedError, check_range
from posenc.evaluation.extend._frequencies import Factor, Rescaled
from posenc.evaluation.extend._scores import check_softmax
from posenc.model.decoder import Decoder


class LongRoPE(Rescaled):
    """Frequencies divided as a search found best."""

    name = "longrope"
    paper = "Ding et al. 2024, arXiv 2402.13753"
    formula = "theta_k / lambda_k; logits times 1 + ln s / ln T"

    def __init__(self, model: Decoder, *, factor: Factor, factors: list[float] | None) -> None:
        super().__init__(model, factor=factor)
        check_softmax(self.parts)
        pairs = len(self.turning.frequencies(torch.device("cpu")))
        if factors is None:
            raise RefusedError(f"its divisors must be given: extend.factors, a list of {pairs}, one a pair")
        if len(factors) != pairs:
            problem = f"{len(factors)} numbers for {pairs} rotated pairs"
            raise UserError("extend.factors", factors, problem, allowed=f"a list of {pairs} numbers")
        for k, divisor in enumerate(factors):
            check_range(f"factors[{k}]", divisor, 0, above=True)
        self.factors = factors

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        return theta / torch.tensor(self.factors, dtype=theta.dtype, device=theta.device)

    def logits(self, s: float) -> float:
        return 1 + math.log(s) / math.log(self.reach)
