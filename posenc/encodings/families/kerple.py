"""KERPLE: conditionally positive definite kernels of the distance, two learned numbers for each head.

Chi, Fan, Ramadge, Rudnicky 2022, arXiv 2205.09921. Both are shared by the layers, kept above 0.01 as in the
released code (there by a clamp, here by a reparametrisation) and not decayed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape

FLOOR = 0.01


class Kerple(Encoding):
    """- a k(r; b) with a, b learned for each head; a subclass gives the kernel and the parameters' ranges."""

    paper = "Chi, Fan, Ramadge, Rudnicky 2022 (KERPLE), arXiv 2205.09921"
    acts_on = "bias"
    learned = "2*H"
    relative = True
    penalty = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.a = nn.Parameter(torch.empty(shape.n_heads))  # (H,), before its reparametrisation
        self.b = nn.Parameter(torch.empty(shape.n_heads))  # (H,)

    def raw(self, name: str, value: Tensor) -> Tensor:
        """The parameter `name` whose reparametrised value is this one."""
        raise NotImplementedError

    def drawn_up_to(self, name: str) -> float:
        """The parameter starts uniformly between 0 and this."""
        raise NotImplementedError

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        value = torch.rand(parameter.shape, generator=generator) * self.drawn_up_to(name)
        parameter.copy_(self.raw(name, value))
