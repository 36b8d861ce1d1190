"""What KERPLE's two kernels share: a and b for each head, learned and kept positive."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.shared.bounded import inverse_soft_floor

KERPLE_FLOOR = 0.01  # lower bound of a and b, as in the released code


class Kerple(Encoding):
    """Add the bias -a k(r; b). A subclass computes the kernel k, a function of the distance r.

    a and b are learned for each head and shared by the layers. They are kept above 0.01 and not decayed.
    """

    paper = "Chi, Fan, Ramadge, Rudnicky 2022 (KERPLE), arXiv 2205.09921"
    acts_on = "bias"
    learned = "2*H"
    relative = True
    penalty = True
    starts_below: ClassVar[dict[str, float]]  # of "a" and "b": initial values are uniform from 0 to this

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        # The raw numbers, of any sign, from which a subclass computes a and b.
        self.a = nn.Parameter(torch.empty(shape.n_heads))  # (H,)
        self.b = nn.Parameter(torch.empty(shape.n_heads))  # (H,)

    def learned_parameters(self) -> int:
        return 2 * self.shape.n_heads

    def raw(self, name: str, value: Tensor) -> Tensor:
        """Return the raw number from which a subclass computes this value of a or b."""
        return inverse_soft_floor(value, KERPLE_FLOOR)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        value = torch.rand(parameter.shape, generator=generator) * self.starts_below[name]
        # The paper draws a and b themselves, so the raw number is made of the draw.
        parameter.copy_(self.raw(name, value))
