"""YaRN: NTK-by-parts, and logits sharpened with the factor.

Formula: frequencies as in `ntk_by_parts`; logits times (0.1 ln s + 1)^2, s = `factor`, W/T with `auto`. The
logits are all of them: of partial rotary also what the still numbers add, in a sum also the biases.
Public implementations multiply the cosines and sines instead, so that in partial rotary the still numbers
keep their share, and ramp over the index (see `ntk_by_parts`).
Paper: Peng, Quesnelle, Fan, Shippole 2023, arXiv 2309.00071, where a short fine-tune follows; here there is
none.
"""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor

from posenc.evaluation.extend._frequencies import (
    Factor,
    Rescaled,
    by_parts,
    check_betas,
    none_kept,
)
from posenc.evaluation.extend._scores import check_softmax
from posenc.model.decoder import Decoder


class YaRN(Rescaled):
    """Interpolation by parts, and a temperature."""

    name = "yarn"
    paper = "Peng, Quesnelle, Fan, Shippole 2023, arXiv 2309.00071"
    formula = "ntk_by_parts; logits times (0.1 ln s + 1)^2"
    grid: ClassVar = {"beta_fast": (2.0, 8.0, 32.0)}

    def __init__(self, model: Decoder, *, factor: Factor, beta_slow: float, beta_fast: float) -> None:
        super().__init__(model, factor=factor)
        check_softmax(self.parts)
        check_betas(beta_slow, beta_fast)
        self.beta_slow, self.beta_fast = beta_slow, beta_fast

    def warnings(self) -> list[str]:
        return none_kept(self, self.beta_fast)

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        return by_parts(theta, s, self.reach, self.beta_slow, self.beta_fast)

    def logits(self, s: float) -> float:
        return (0.1 * math.log(s) + 1) ** 2
