"""Raw counting: the position times a learned vector. A control, the simplest encoding of a position.

Formula: x_t + t w.
  w  in R^d, learned, one for each place where positions enter
Choice: w starts with the standard deviation d^-1/2 / T, so that at T the vector is as large as a token
embedding. A start with d^-1/2 drowns the text. Losses at T = 64 after 1M tokens of sympy (nano, bytes):
  start with d^-1/2 / T  1.89 nats
  with zeros             1.85
  with d^-1/2            2.67
  without an encoding    2.33
"""

import torch
from torch import Tensor, nn

from posenc.encodings.base import Shape
from posenc.encodings.shared.absolute import JOINED, PLACES, Absolute, Combine


class Integer(Absolute):
    name = "integer"
    paper = "none (folklore)"
    formula = "x_t + t w"
    past_training = "the vector keeps growing and drowns the token: each norm leaves the text less"
    learned = f"(d + {JOINED})*{PLACES}"

    def __init__(self, shape: Shape, *, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        self.step = nn.Parameter(torch.empty(self.places, shape.d_model))  # (places, d)

    def learned_in_a_place(self) -> int:
        return self.shape.d_model

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        super().initialize(name, parameter, generator)
        if name == "step":
            parameter.div_(self.shape.positions)

    def rows(self, pos: Tensor, place: int) -> Tensor:
        return pos.float()[:, None] * self.step[place]  # (T, d_model)
