"""NTK-aware interpolation: a larger base."""

import torch
from torch import Tensor

from posenc.evaluation.extensions.rescaled import CPU, Rescaled


class NTK(Rescaled):
    """Multiply theta_k by s^(-2k/(D'-2)): the first stays as it is, and the last is divided by s.

    This is the same as a larger base, and as written in YaRN, section 3.1.
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
