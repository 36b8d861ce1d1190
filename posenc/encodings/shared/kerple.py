"""What KERPLE's two kernels share: a and b for each head, learned and kept positive."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.shared.bounded import inverse_soft_floor

KERPLE_FLOOR = 0.01  # lower bound of a and b, as in the released code


class Kerple(Encoding):
    """Add the bias -a k(r; b), of a kernel k of the distance r that a subclass gives.

    a and b are learned for each head, shared by the layers, kept above 0.01 and not decayed.
    """

    paper = "Chi, Fan, Ramadge, Rudnicky 2022 (KERPLE), arXiv 2205.09921"
    acts_on = "bias"
    learned = "2*H"
    relative = True
    penalty = True
    starts_below: ClassVar[dict[str, float]]  # for a and b: they start uniform between 0 and this

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.a = nn.Parameter(torch.empty(shape.n_heads))  # (H,), before its reparametrisation
        self.b = nn.Parameter(torch.empty(shape.n_heads))  # (H,)

    def learned_parameters(self) -> int:
        return 2 * self.shape.n_heads

    def raw(self, name: str, value: Tensor) -> Tensor:
        """Return the parameter `name` before its reparametrisation to this value."""
        return inverse_soft_floor(value, KERPLE_FLOOR)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        value = torch.rand(parameter.shape, generator=generator) * self.starts_below[name]
        parameter.copy_(self.raw(name, value))
