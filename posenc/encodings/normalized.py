"""Positions scaled to the window: 0 for the first token, 1 for the last. A control.

Formula: x'_t = x_t + t/(n-1) w, n the window's length, w in R^d learned, one in each place. n - 1 is the last
position given, so that positions which are drawn are scaled by the largest of them; a window of one token
has 0.
Paper: none, folklore.
It leaks the length: the same prefix of a longer text has other vectors, at every token. So it is not
prefix-stable, cannot decode token by token with a cache, and a token knows how much of the window is to come.
Past T, every value was seen in training, but the step between neighbours, w/(n-1), was not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posenc.encodings.base import Shape
from posenc.encodings.families.absolute import JOINED, PLACES, Absolute, Combine


class Normalized(Absolute):
    """The share of the window that has passed, times a learned vector."""

    name = "normalized"
    paper = "none (folklore)"
    formula = "x_t + t/(n-1) w, n the window's length"
    past_training = (
        "values stay in [0, 1], but neighbours move together: a step is 1/(n-1), never seen beyond T"
    )
    learned = f"(d + {JOINED})*{PLACES}"
    prefix_stable = False
    traps = (
        "It leaks the window's length, and every token's vector moves when the text grows: what was computed "
        "for a prefix does not hold for the longer text.",
        "n - 1 is zero for a window of one token.",
    )

    def __init__(self, shape: Shape, *, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        self.direction = nn.Parameter(torch.empty(self.places, shape.d_model))  # (places, d)

    def rows(self, pos: Tensor, place: int) -> Tensor:
        share = pos.float() / pos[-1].clamp_min(1).float()  # (T,)
        return share[:, None] * self.direction[place]  # (T, d_model)
