"""Positions scaled to the window: 0 for the first token, 1 for the last. A control: it knows the length.

Formula: x_t + t/(n-1) w.
  w      in R^d, learned, one for each place where positions enter
  n - 1  the last position of the window; with `positions=` the largest one that was drawn
In a window of one token its value is 0.
The same tokens have other vectors in a longer text. So it is not prefix-stable, and a model with it cannot
generate text with a cache. Past T every value was seen in training, but the step w/(n-1) was not.
"""

import torch
from torch import Tensor, nn

from posenc.encodings.base import Shape
from posenc.encodings.shared.absolute import JOINED, PLACES, Absolute, Combine


class Normalized(Absolute):
    name = "normalized"
    paper = "none (folklore)"
    formula = "x_t + t/(n-1) w, n the window's length"
    past_training = "values stay in [0, 1], but the step between neighbours, 1/(n-1), was never seen"
    learned = f"(d + {JOINED})*{PLACES}"
    prefix_stable = False

    def __init__(self, shape: Shape, *, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        self.direction = nn.Parameter(torch.empty(self.places, shape.d_model))  # (places, d)

    def learned_in_a_place(self) -> int:
        return self.shape.d_model

    def rows(self, pos: Tensor, place: int) -> Tensor:
        last = pos[-1].clamp_min(1)  # 1 for a window of one token
        # The last position and not the number of tokens, so that drawn positions end at 1 as well.
        share = pos.float() / last.float()  # (T,)
        return share[:, None] * self.direction[place]  # (T, d_model)
