"""NTK-aware scaling: a larger base, so that the slowest pair is interpolated and the fastest left alone.

Formula: base * s^(D'/(D'-2)), D' the rotated width, so theta_k times s^(-2k/(D'-2)): the first as it was, the
last divided by s. s = `factor`, W/T with `auto`.
D' is the rotated width also for partial rotary and p-RoPE; the pairs p-RoPE dropped stay still, so that its
slowest turning pair is divided by less than s.
Source: u/bloc97 2023 (no paper), as written in YaRN, Peng et al. 2023, arXiv 2309.00071, section 3.1.
"""

from __future__ import annotations

from torch import Tensor

from posenc.evaluation.extend._frequencies import Factor, Rescaled, check_pairs, stretched_base
from posenc.model.decoder import Decoder


class NTK(Rescaled):
    """The base stretched."""

    name = "ntk"
    paper = "u/bloc97 2023, in Peng et al. 2023 (YaRN), arXiv 2309.00071"
    formula = "base * s^(D/(D-2)), s = W/T"

    def __init__(self, model: Decoder, *, factor: Factor) -> None:
        super().__init__(model, factor=factor)
        check_pairs(self.turning)

    def rescaled(self, theta: Tensor, s: float) -> Tensor:
        return stretched_base(theta, s)
