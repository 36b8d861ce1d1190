"""Extensions that turn pairs more slowly: PI, NTK, NTK-by-parts, YaRN, LongRoPE.

theta_k are the trained frequencies in radians a token, highest first, k = 0..D'/2-1 for a rotated width D';
those that are zero (p-RoPE's dropped ones) stay zero. s is the factor: W/T with `factor: auto`, 1 up to T.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding
from posenc.encodings.families.rotary import Rotary
from posenc.evaluation.extensions.base import (
    Extension,
    RefusedError,
    Times,
    check_range,
    moves,
    name_of,
    with_random_numbers,
)
from posenc.model.decoder import Decoder

Factor = float | Literal["auto"]


class Rescaled(Extension):
    """theta_k made smaller by a subclass; at s = 1 the trained encoding itself.

    What else acts by distance (a bias in a sum, a window, changed scores) keeps the true distances.
    """

    applies = (
        "encodings that turn pairs of queries and keys by pos * theta and change them by position in no "
        "other way (so not where pairs fade as well), alone or in a sum"
    )

    def __init__(self, model: Decoder, *, factor: Factor) -> None:
        super().__init__(model)
        self.turning = _turning(self.parts)
        if factor != "auto":
            check_range("factor", factor, 1)
        self.factor = factor

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        """Return theta (D'/2,) float64 at the factor s > 1."""
        raise NotImplementedError

    def logits(self, s: float) -> float:
        """Return what the logits are multiplied by at the factor s."""
        return 1.0

    def s(self, window: int) -> float:
        """Return the factor at a window of W tokens."""
        return max(1.0, self.span(window) / self.reach) if self.factor == "auto" else self.factor

    def effective_encoding(self, window: int) -> Encoding:
        s = self.s(window)
        if s == 1:
            return self.trained
        slower = with_frequencies(self.turning, lambda theta: self.rescaled(theta, s))
        parts = [slower if part is self.turning else part for part in self.parts]
        times = self.logits(s)
        return self.together(parts if times == 1 else [*parts, Times(self.shape, times)])

    def resolved(self, window: int) -> dict[str, Any]:
        s = self.s(window)
        times = self.logits(s)
        return {"factor": s} if times == 1 else {"factor": s, "logits": times}


class PI(Rescaled):
    """Position interpolation: all positions are squeezed into the training length, theta_k / s.

    The paper then fine-tunes shortly; here there is none.
    """

    name = "pi"
    paper = "Chen, Wong, Chen, Tian 2023, arXiv 2306.15595"
    formula = "positions m / s, s = W/T"

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        return theta / s


class NTK(Rescaled):
    """A larger base, so that the slowest pair is interpolated and the fastest left alone.

    base * s^(D'/(D'-2)), so theta_k times s^(-2k/(D'-2)): the first as it was, the last divided by s. D' is
    the rotated width also for partial rotary and p-RoPE; the pairs that p-RoPE dropped stay still, so that
    its slowest turning pair is divided by less than s. As written in YaRN, section 3.1.
    """

    name = "ntk"
    paper = "u/bloc97 2023, in Peng et al. 2023 (YaRN), arXiv 2309.00071"
    formula = "base * s^(D/(D-2)), s = W/T"

    def __init__(self, model: Decoder, *, factor: Factor) -> None:
        super().__init__(model, factor=factor)
        if len(self.turning.frequencies(torch.device("cpu"))) < 2:  # a single pair turns by 1 with any base
            raise RefusedError("with a single pair the base changes nothing")

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        k = torch.arange(len(theta), dtype=theta.dtype, device=theta.device)
        return theta * s ** (-k / (len(theta) - 1))  # 2k/(D'-2)


class DynamicNTK(NTK):
    """The stretched base of `ntk`, its factor from the current length: s = a W/T - (a - 1), a = `factor`.

    With a = 1 the numbers are those of `ntk` with `factor: auto`; a larger a stretches more, and stays 1 at
    T. The current length is the window: all of its tokens are turned by the same angles, where decoding token
    by token meets another base at every step. As written in YaRN, section 3.3.
    """

    name = "dynamic_ntk"
    paper = "u/emozilla 2023, in Peng et al. 2023 (YaRN), arXiv 2309.00071"
    formula = "base * s^(D/(D-2)), s = a W/T - (a - 1)"
    grid: ClassVar = {"factor": (1.0, 2.0, 4.0)}

    def __init__(self, model: Decoder, *, factor: float) -> None:
        super().__init__(model, factor="auto")
        check_range("factor", factor, 0, above=True)
        self.times = factor

    def s(self, window: int) -> float:
        return 1 + self.times * (super().s(window) - 1)


class NTKByParts(Rescaled):
    """Fast pairs are left alone, slow ones interpolated, by how often they turn within T.

    (1 - gamma(r)) theta/s + gamma(r) theta, r = T theta / (2 pi) the turns within the training length,
    gamma(r) = 0 below `beta_slow`, 1 above `beta_fast`, linear in r between. Public implementations ramp
    linearly over the pair's index k instead, from the rounded index where r = beta_fast to the one where
    r = beta_slow; between the two borders their numbers differ from these. The published 32 and 1 go with
    windows of thousands of tokens: below T = 2 pi 32 = 201 no pair is kept.
    """

    name = "ntk_by_parts"
    paper = "Peng, Quesnelle, Fan, Shippole 2023 (YaRN), arXiv 2309.00071"
    formula = "(1 - gamma) theta/s + gamma theta, gamma a ramp over the turns within T"
    grid: ClassVar = {"beta_fast": (2.0, 8.0, 32.0)}

    def __init__(self, model: Decoder, *, factor: Factor, beta_slow: float, beta_fast: float) -> None:
        super().__init__(model, factor=factor)
        check_range("beta_slow", beta_slow, 0)
        check_range("beta_fast", beta_fast, beta_slow, above=True)
        self.beta_slow, self.beta_fast = beta_slow, beta_fast

    def warnings(self) -> list[str]:
        most = float(self.turning.frequencies(torch.device("cpu"))[0]) * self.reach / (2 * math.pi)
        if most >= self.beta_fast:
            return []
        return [
            f"{self.name}: no frequency is kept: the fastest turns {most:.1f} times within "
            f"{self.reach} tokens, less than extend.beta_fast={self.beta_fast:g}"
        ]

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        turns = self.reach * theta / (2 * math.pi)
        kept = ((turns - self.beta_slow) / (self.beta_fast - self.beta_slow)).clamp(0, 1)  # gamma (D'/2,)
        return (1 - kept) * theta / s + kept * theta


class YaRN(NTKByParts):
    """NTK-by-parts, and logits times (0.1 ln s + 1)^2.

    The logits are all of them: of partial rotary also what the still numbers add, in a sum also the biases.
    Public implementations multiply the cosines and sines instead, so that in partial rotary the still numbers
    keep their share. The paper then fine-tunes shortly; here there is none.
    """

    name = "yarn"
    paper = "Peng, Quesnelle, Fan, Shippole 2023, arXiv 2309.00071"
    formula = "ntk_by_parts; logits times (0.1 ln s + 1)^2"

    def __init__(self, model: Decoder, *, factor: Factor, beta_slow: float, beta_fast: float) -> None:
        super().__init__(model, factor=factor, beta_slow=beta_slow, beta_fast=beta_fast)
        self.check_softmax()

    def logits(self, s: float) -> float:
        return (0.1 * math.log(s) + 1) ** 2


class LongRoPE(Rescaled):
    """A divisor of its own for every pair, found by a search for each model and length.

    theta_k / lambda_k at every window with s > 1, lambda = `factors`, one a rotated pair, fastest first;
    logits times 1 + ln s / ln T, as in the models published with it (Phi-3). No divisors fit all models, so
    it is refused without them. Departures: no first tokens are left uninterpolated (the paper's n-hat).
    """

    name = "longrope"
    paper = "Ding et al. 2024, arXiv 2402.13753"
    formula = "theta_k / lambda_k; logits times 1 + ln s / ln T"

    def __init__(self, model: Decoder, *, factor: Factor, factors: list[float] | None) -> None:
        super().__init__(model, factor=factor)
        self.check_softmax()
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


def with_frequencies(part: Rotary, change: Callable[[Tensor], Tensor]) -> Rotary:
    """Return the same encoding, its parameters shared, turning by change(theta) instead of theta."""
    trained = part.frequencies
    changed = copy.copy(part)
    changed.frequencies = lambda device=None: change(trained(device))  # type: ignore[method-assign]
    return changed


def _turning(parts: tuple[Encoding, ...]) -> Rotary:
    """Return the one part that turns pairs. Raises RefusedError where there is none, or it does more."""
    rotating = [part for part in parts if "rotate" in part.hooks]
    if not rotating:
        raise RefusedError("no frequencies turn its queries and keys")
    part = rotating[0]  # a sum has one rotation at most
    if not isinstance(part, Rotary):
        raise RefusedError(f"{name_of(part)} does not turn pairs by frequencies")
    tried = with_random_numbers(part)
    assert isinstance(tried, Rotary)
    if moves(with_frequencies(tried, torch.zeros_like), torch.tensor([0, 1, 5])):
        raise RefusedError(f"{name_of(part)} does more by position than to turn pairs")
    return part
