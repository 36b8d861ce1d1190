"""NTK-by-parts: fast pairs are left alone, slow ones interpolated, by how often they turn within T.

Formula: (1 - gamma(r)) theta/s + gamma(r) theta, r = T theta / (2 pi) the turns within the training length,
gamma(r) = 0 below `beta_slow`, 1 above `beta_fast`, linear in r between. s = `factor`, W/T with `auto`.
Public implementations ramp linearly over the pair's index k instead, from the rounded index where r =
beta_fast to the one where r = beta_slow; between the two borders their numbers differ from these.
The published 32 and 1 go with windows of thousands of tokens: below T = 2 pi 32 = 201 no pair is kept.
Paper: Peng, Quesnelle, Fan, Shippole 2023 (YaRN), arXiv 2309.00071, section 3.2.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from posenc.evaluation.extend._frequencies import Factor, Rescaled, by_parts, check_betas, none_kept
from posenc.model.decoder import Decoder


class NTKByParts(Rescaled):
    """Interpolation for the pairs that need it."""

    name = "ntk_by_parts"
    paper = "Peng, Quesnelle, Fan, Shippole 2023 (YaRN), arXiv 2309.00071"
    formula = "(1 - gamma) theta/s + gamma theta, gamma a ramp over the turns within T"
    grid: ClassVar = {"beta_fast": (2.0, 8.0, 32.0)}

    def __init__(self, model: Decoder, *, factor: Factor, beta_slow: float, beta_fast: float) -> None:
        super().__init__(model, factor=factor)
        check_betas(beta_slow, beta_fast)
        self.beta_slow, self.beta_fast = beta_slow, beta_fast

    def warnings(self) -> list[str]:
        return none_kept(self, self.beta_fast)

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        return by_parts(theta, s, self.reach, self.beta_slow, self.beta_fast)
