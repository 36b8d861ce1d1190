"""NTK-by-parts: slow pairs are interpolated, fast ones are left alone."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from posenc.evaluation.extensions.rescaled import Rescaled, by_turns


@dataclass(eq=False, kw_only=True)
class NTKByParts(Rescaled):
    """Leave fast pairs alone and interpolate slow ones, by their turns r = T theta / (2 pi) within T.

    In between, gamma is the share of theta that is left alone. With `ramp: index`, as in released code, gamma
    falls linearly over the index of the pair, from 1 at the pair with r = `beta_fast` (rounded down) to 0 at
    the pair with r = `beta_slow` (rounded up). With `ramp: turns`, as in the paper, it is linear in r. The
    frequencies of the two ramps differ by up to 24% at s = 2, and by up to 69% at s = 16, for 64 rotated
    numbers, base 10000 and T = 512.

    The published 32 and 1 are for thousands of tokens: below T = 201 no pair turns 32 times.
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
        takes_logarithm = self.ramp == "index"  # of the turns: the index of a pair with 0 turns is infinite
        self.check_range("beta_slow", self.beta_slow, 0, above=takes_logarithm)
        self.check_range("beta_fast", self.beta_fast, self.beta_slow, above=True)

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        if self.ramp == "turns":
            turns = (self.beta_slow, self.beta_fast)
            return by_turns(x=theta, theta=theta, s=s, length=self.reach, turns=turns)
        first, last = self.borders()
        k = torch.arange(len(theta), dtype=theta.dtype, device=theta.device)
        gamma = 1 - ((k - first) / max(last - first, 0.001)).clamp(0, 1)  # 0.001: as published
        return (1 - gamma) * theta / s + gamma * theta

    def borders(self) -> tuple[float, float]:
        """Return the indices of the pairs where the ramp over the index begins and ends."""
        return self.within_pairs(
            math.floor(self.index_of(self.beta_fast)), math.ceil(self.index_of(self.beta_slow))
        )

    def within_pairs(self, first: float, last: float) -> tuple[float, float]:
        """Return the borders of the ramp, moved into 0 .. D' - 1."""
        # The upper limit D' - 1 is that of released code, though the last of D'/2 pairs has the index D'/2 -
        # 1. A limit at the last pair would give slow pairs other frequencies than the released code does.
        begin = max(0, first)
        return begin, max(begin, min(last, self.turning.width - 1))

    def index_of(self, turns: float) -> float:
        """Return the index of the pair that turns so often within T, with a fraction between two pairs."""
        return self.turning.pair_with_turns(turns, self.reach)
