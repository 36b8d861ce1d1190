"""Extensions that turn pairs more slowly: PI, NTK, NTK-by-parts, YaRN, Llama 3, LongRoPE.

theta_k are the trained frequencies in radians a token, highest first, k = 0..D'/2-1 for a rotated width D';
those that are zero (p-RoPE's dropped ones) stay zero. s is the factor: W/T with `factor: auto`, 1 up to T.
"""

import copy
import math
import random
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding
from posenc.encodings.shared.rotary import Rotary
from posenc.evaluation.extensions import Extension, Length, Times

Factor = float | Literal["auto"]
CPU = torch.device("cpu")


@dataclass(eq=False, kw_only=True)
class Rescaled(Extension):
    """theta_k made smaller by a subclass; what else acts by distance keeps the true distances."""

    applies = (
        "encodings that turn pairs of queries and keys by pos * theta and change them by position in no "
        "other way (so not where pairs fade as well), alone or in a sum"
    )

    least: ClassVar[float] = 1  # factor; with 0 it must be above
    factor: Factor

    def __post_init__(self) -> None:
        super().__post_init__()
        part = next((part for part in self.parts if "rotate" in part.hooks), None)  # a sum has one at most
        if part is None:
            raise self.refusal("no frequencies turn its queries and keys")
        if not isinstance(part, Rotary):
            raise self.refusal(f"{part.name} does not turn pairs by frequencies")
        if not part.turns_only:
            raise self.refusal(f"{part.name} does more by position than to turn pairs")
        self.turning = part
        if self.factor != "auto":
            self.check_range("factor", self.factor, self.least, above=self.least == 0)

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        """Return theta (D'/2,) float64 at the factor s > 1."""
        raise NotImplementedError

    def turned(self, s: float) -> float:
        """Return what turned numbers of queries and keys are multiplied by at the factor s."""
        return 1.0

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
        trained, slower = self.turning, copy.copy(self.turning)  # its parameters are shared
        louder, times = self.turned(s), self.logits(s)
        vars(slower).update(
            frequencies=lambda device=None: self.rescaled(trained.frequencies(device), s),
            angles=lambda pos: tuple(one * louder for one in Rotary.angles(slower, pos)),
        )
        parts = [slower if part is self.turning else part for part in self.parts]
        return self.together(parts if times == 1 else [*parts, Times(self.shape, times)])

    def resolved(self, window: int) -> dict[str, Any]:
        s = self.s(window)
        found = {"factor": s, "turned": self.turned(s), "logits": self.logits(s)}
        return {key: value for key, value in found.items() if key == "factor" or value != 1}


class PI(Rescaled):
    """Position interpolation, theta_k / s, here without the fine-tuning that follows in the paper."""

    name = "pi"
    paper = "Chen, Wong, Chen, Tian 2023, arXiv 2306.15595"
    formula = "positions m / s, s = W/T"

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        return theta / s


class NTK(Rescaled):
    """A larger base: theta_k times s^(-2k/(D'-2)), the first as it was and the last divided by s.

    As written in YaRN, section 3.1.
    """

    name = "ntk"
    paper = "u/bloc97 2023, in Peng et al. 2023 (YaRN), arXiv 2309.00071"
    formula = "base * s^(D/(D-2)), s = W/T"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.turning.frequencies(CPU)) < 2:  # a single pair turns by 1 with any base
            raise self.refusal("with a single pair the base changes nothing")

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        k = torch.arange(len(theta), dtype=theta.dtype, device=theta.device)
        return theta * s ** (-k / (len(theta) - 1))  # 2k/(D'-2)


@dataclass(eq=False, kw_only=True)
class DynamicNTK(NTK):
    """The base of `ntk` at s = a W/T - (a - 1), a = `factor`: with a = 1 that of `ntk` with `factor: auto`.

    The current length is the window; as written in YaRN, section 3.3.
    """

    name = "dynamic_ntk"
    paper = "u/emozilla 2023, in Peng et al. 2023 (YaRN), arXiv 2309.00071"
    formula = "base * s^(D/(D-2)), s = a W/T - (a - 1)"
    grid: ClassVar = {"factor": (1.0, 2.0, 4.0)}

    least: ClassVar = 0
    factor: float

    def s(self, window: int) -> float:
        return 1 + self.factor * (max(1.0, self.span(window) / self.reach) - 1)


@dataclass(eq=False, kw_only=True)
class NTKByParts(Rescaled):
    """Fast pairs are left alone, slow ones interpolated, by their turns r = T theta / (2 pi) within T.

    `ramp: index`, as deployed: gamma falls over the index, from 1 where r = `beta_fast` (rounded down) to 0
    where r = `beta_slow` (up). `ramp: turns`, as in the paper: linear in r; frequencies differ by 24 to 69%.
    The published 32 and 1 go with thousands of tokens: below T = 201 no pair turns 32 times.
    """

    name = "ntk_by_parts"
    paper = "Peng, Quesnelle, Fan, Shippole 2023 (YaRN), arXiv 2309.00071"
    formula = "(1 - gamma) theta/s + gamma theta, gamma a ramp over the pair's index or its turns within T"
    grid: ClassVar = {"beta_fast": (2.0, 8.0, 32.0)}

    ramp: Literal["index", "turns"]
    beta_slow: float
    beta_fast: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range("beta_slow", self.beta_slow, 0, above=self.ramp == "index")
        self.check_range("beta_fast", self.beta_fast, self.beta_slow, above=True)

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        if self.ramp == "turns":
            return by_turns(theta, theta, s, self.reach, self.beta_slow, self.beta_fast)
        first = max(0, math.floor(self._index(self.beta_fast)))
        last = max(first, min(math.ceil(self._index(self.beta_slow)), self.turning.width - 1))
        k = torch.arange(len(theta), dtype=theta.dtype, device=theta.device)
        kept = 1 - ((k - first) / max(last - first, 0.001)).clamp(0, 1)  # 0.001: as published
        return (1 - kept) * theta / s + kept * theta

    def _index(self, turns: float) -> float:
        """Return the k where base^(-2k/D') turns so often within T."""
        pairs = self.turning.width / 2
        return pairs * math.log(self.reach / (2 * math.pi * turns)) / math.log(self.turning.base)


@dataclass(eq=False, kw_only=True)
class YaRN(NTKByParts):
    """NTK-by-parts and a temperature, m(a) = 0.1 a ln s + 1, here without the fine-tuning of the paper.

    Cos and sin times m(`mscale`) / m(`mscale_all_dim`), logits times m(`mscale_all_dim`)^2: 1 and 0 as in the
    released code and transformers, 1 and 1 as in the paper and DeepSeek-V3, 0.707 twice as in DeepSeek-V2.
    """

    name = "yarn"
    paper = "Peng, Quesnelle, Fan, Shippole 2023, arXiv 2309.00071; mscale: DeepSeek-V2, arXiv 2405.04434"
    formula = "ntk_by_parts; turned q and k times 0.1 ln s + 1 (mscale, mscale_all_dim: other temperatures)"

    mscale: float
    mscale_all_dim: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_softmax()
        self.check_range("mscale", self.mscale, 0)
        self.check_range("mscale_all_dim", self.mscale_all_dim, 0)

    def turned(self, s: float) -> float:
        return _m(s, self.mscale) / _m(s, self.mscale_all_dim)

    def logits(self, s: float) -> float:
        return _m(s, self.mscale_all_dim) ** 2


def _m(s: float, scale: float) -> float:
    return 0.1 * scale * math.log(s) + 1


@dataclass(eq=False, kw_only=True)
class Llama3(Rescaled):
    """`ntk_by_parts` with `ramp: turns`, within `original_context` instead of T.

    Llama 3.1 has a factor of 8 at every window and an original context of 8192.
    """

    name = "llama3"
    paper = "Llama 3.1 (Meta 2024), in its released code"
    formula = "theta/s below 1 turn within the original context, theta above 4, a ramp over the turns between"
    grid: ClassVar = {"high_freq_factor": (2.0, 4.0, 8.0)}

    low_freq_factor: float
    high_freq_factor: float
    original_context: Length

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_range("low_freq_factor", self.low_freq_factor, 0)
        self.check_range("high_freq_factor", self.high_freq_factor, self.low_freq_factor, above=True)
        self.original = self.tokens("original_context", self.original_context, self.reach)

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        return by_turns(theta, theta, s, self.original, self.low_freq_factor, self.high_freq_factor)


@dataclass(eq=False, kw_only=True)
class LongRoPE(Rescaled):
    """theta_k / lambda_k at every window with s > 1, lambda = `factors`, one a rotated pair, fastest first.

    Logits as in the models published with it (Phi-3). No divisors fit all models: `extend.tune=true` searches
    them. From none, PI, NTK and by-parts on, each child takes every divisor from one of two of the best four
    and changes three in ten, then they are sorted; all lie in [1, 1.25 s], as in the paper.
    Departures: no first tokens are left uninterpolated (the paper's n-hat), and it has 64 parents.
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
            words = f"extend.factors, a list of {pairs}, one a pair, or extend.tune=true"
            self.missing = f"its divisors must be given: {words}"
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
        if self.factors is not None:
            return
        s, chance, best = self.s(window), random.Random(0), list[tuple[float, list[float]]]()
        most, theta = 1.25 * s, self.turning.frequencies(CPU)
        pairs = len(theta)
        parts = by_turns(torch.ones_like(theta), theta, s, self.reach, 1, 32).reciprocal().tolist()
        ntk = [s ** (k / max(pairs - 1, 1)) for k in range(pairs)]
        starts = [[1.0] * pairs, [s] * pairs, ntk, parts]
        while True:
            if starts:
                child = starts.pop(0)
            else:
                mother, father = (chance.choice(best)[1] for _ in range(2))
                child = [chance.choice(both) for both in zip(mother, father, strict=True)]
                child = [f * math.exp(chance.gauss(0, 0.3)) if chance.random() < 0.3 else f for f in child]
            child = sorted(round(min(max(f, 1), most), 2) for f in child)
            loss = yield {"factors": child}
            best = sorted([*best, (loss, child)])[:4]


def by_turns(x: Tensor, theta: Tensor, s: float, length: int, low: float, high: float) -> Tensor:
    """Return x/s for pairs below `low` turns within `length`, x above `high`, a ramp in between."""
    kept = ((length * theta / (2 * math.pi) - low) / (high - low)).clamp(0, 1)  # gamma (D'/2,)
    return (1 - kept) * x / s + kept * x
