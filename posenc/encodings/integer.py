"""Raw counting: the position's number times a learned vector. A control.

Formula: x'_t = x_t + t w, w in R^d learned, one in each place.
Paper: none, folklore; shown in tutorials as what not to do, for the added vector grows without bound.
Choice: w starts with standard deviation d^-1/2 / T, so that at the end of the training window the vector is
as large as a token embedding. With d^-1/2 it is T times as large and drowns the text: 2.67 nats at T = 64
after 1M tokens of sympy (nano, bytes), where this start gives 1.89, zeros 1.85 and no encoding at all 2.33.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc.encodings.base import Shape
from posenc.encodings.families.absolute import JOINED, PLACES, Absolute, Combine


class Integer(Absolute):
    """t times a learned vector."""

    name = "integer"
    paper = "none (folklore)"
    formula = "x_t + t w"
    past_training = (
        "the vector goes on growing and drowns the token: each norm leaves the text a smaller share"
    )
    learned = f"(d + {JOINED})*{PLACES}"
    traps = ("In bf16 the positions 256 and 257 are one number; here t is exact and the product float32.",)

    def __init__(self, shape: Shape, *, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        self.step = nn.Parameter(torch.empty(self.places, shape.d_model))  # (places, d)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        super().initialize(name, parameter, generator)
        if name == "step":
            parameter.div_(self.shape.positions)

    def rows(self, pos: Tensor, place: int) -> Tensor:
        return pos.float()[:, None] * self.step[place]  # (T, d_model)
