"""Dynamic NTK: the stretched base of `ntk`, its factor from the current length and the training length.

Formula: base * s^(D'/(D'-2)), s = a W/T - (a - 1), a = `factor`; s = 1 up to T. With a = 1 the numbers are
those of `ntk` with `factor: auto`; a larger a stretches more, and stays 1 at T.
The current length is the window: all of its tokens are turned by the same angles. Decoding token by token
meets another base at every step instead.
Source: u/emozilla 2023 (no paper), as written in YaRN, Peng et al. 2023, arXiv 2309.00071, section 3.3.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from posenc.evaluation.extend._base import check_range
from posenc.evaluation.extend._frequencies import Rescaled, check_pairs, stretched_base
from posenc.model.decoder import Decoder


class DynamicNTK(Rescaled):
    """The base stretched as the text grows."""

    name = "dynamic_ntk"
    paper = "u/emozilla 2023, in Peng et al. 2023 (YaRN), arXiv 2309.00071"
    formula = "base * s^(D/(D-2)), s = a W/T - (a - 1)"
    grid: ClassVar = {"factor": (1.0, 2.0, 4.0)}

    def __init__(self, model: Decoder, *, factor: float) -> None:
        super().__init__(model, factor="auto")
        check_pairs(self.turning)
        check_range("factor", factor, 0, above=True)
        self.times = factor

    def s(self, window: int) -> float:
        return 1 + self.times * (super().s(window) - 1)

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        return stretched_base(theta, s)
