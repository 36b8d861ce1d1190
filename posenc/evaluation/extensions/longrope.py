"""LongRoPE: a divisor of its own for each pair, given or searched."""

import math
import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.evaluation.extensions.rescaled import CPU, Rescaled, by_turns

LARGEST = 1.25  # the largest divisor, as a multiple of the factor s, as in the paper
# The paper keeps 64, but each candidate costs an evaluation, and here it starts from four lists.
PARENTS = 4  # how many of the best lists of divisors have children


@dataclass(eq=False, kw_only=True)
class LongRoPE(Rescaled):
    """Divide theta_k by lambda_k at windows with s > 1; `factors` has a lambda for each pair, fastest first.

    Logits are multiplied as in the models published with it (Phi-3).

    No divisors fit all models, so `extend.tune=true` searches them by evolution. It starts from the divisors
    of no extension, PI, NTK and NTK-by-parts. A child takes each divisor from one of two of the best four
    lists, changes three in ten of them, and sorts them. All lie in [1, 1.25 s], as in the paper.
    Departures: the paper has 64 parents, and leaves its first n-hat tokens uninterpolated.
    """

    name = "longrope"
    paper = "Ding et al. 2024, arXiv 2402.13753"
    formula = "theta_k / lambda_k; logits times 1 + ln s / ln T"

    factors: list[float] | None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_softmax()
        pairs = len(self.turning.frequencies(CPU))
        if self.factors is None:
            self.missing = f"its divisors must be given, one for each of {pairs} pairs"
            # A published one has as many numbers as its heads have pairs, in this order.
            numbers = f"extend.factors=[1.0,1.2,...]: {pairs} numbers, fastest pair first"
            self.hint_to_missing = f"{numbers}, as long_factor in a config.json; or extend.tune=true"
        elif len(self.factors) != pairs:
            problem = f"{len(self.factors)} numbers for {pairs} rotated pairs"
            raise UserError("extend.factors", self.factors, problem, allowed=f"a list of {pairs} numbers")
        for k, divisor in enumerate(self.factors or ()):
            self.check_range(f"factors[{k}]", divisor, 0, above=True)

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        return theta / torch.tensor(self.factors, dtype=theta.dtype, device=theta.device)

    def logits(self, s: float) -> float:
        return 1 + math.log(s) / math.log(self.reach)

    def search(self, window: int) -> Generator[dict[str, Any], float, None]:
        """Yield lists of divisors without end: four to start from, then children of the best four."""
        # The user has given divisors, so there is nothing to search.
        if self.factors is not None:
            return
        s = self.s(window)
        # A fixed seed, so that a search that is made again tries the same divisors.
        rng = random.Random(0)
        starts = self._starts(s)
        best: list[tuple[float, list[float]]] = []  # loss and divisors
        while True:
            candidate = starts.pop(0) if starts else self._child(best, rng)
            # Below 1 a pair would turn faster than in training.
            in_range = [min(max(divisor, 1), LARGEST * s) for divisor in candidate]
            # Sorted, because the paper's divisors never fall from a faster pair to a slower one.
            child = sorted(round(divisor, 2) for divisor in in_range)
            loss = yield {"factors": child}
            # A candidate without a loss has an infinite one, so it has no children once four others have a
            # loss.
            best = sorted([*best, (loss, child)])[:PARENTS]

    def _starts(self, s: float) -> list[list[float]]:
        """Return the divisors of no extension, PI, NTK and NTK-by-parts at the factor s."""
        theta = self.turning.frequencies(CPU)
        pairs = len(theta)
        ntk = [s ** (k / max(pairs - 1, 1)) for k in range(pairs)]
        # 1 and 32 turns are the published borders of NTK-by-parts.
        share_of_theta = by_turns(torch.ones_like(theta), theta, s, self.reach, turns=(1, 32))
        by_parts = share_of_theta.reciprocal().tolist()
        return [[1.0] * pairs, [s] * pairs, ntk, by_parts]

    def _child(self, best: list[tuple[float, list[float]]], rng: random.Random) -> list[float]:
        """Take every divisor from one of two parents and change three in ten."""
        mother = rng.choice(best)[1]
        father = rng.choice(best)[1]
        child = [rng.choice(divisors) for divisors in zip(mother, father, strict=True)]
        for k in range(len(child)):
            if rng.random() < 0.3:
                # A factor and not a sum, so that a divisor of 1 and one of 16 change alike.
                child[k] *= math.exp(rng.gauss(0, 0.3))
        return child
