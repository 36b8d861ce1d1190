"""Learned and sinusoidal positions side by side: the first p of d dimensions are learned, the others waves.

Formula: sqrt(d) x_t + [sqrt(d) E[t]; PE_t].
  E   a learned table of T rows of p numbers, p = learned_share * d, rounded
  PE  the sinusoids of width d - p, whose frequencies cover the whole range
Setting:
  beyond  what the learned part has past T: untrained | clamp | truncate | refuse, as in `learned`
Paper: none. Some texts credit it to T5, which has a bias by distance instead.
Choice: x and E are both multiplied by sqrt(d), and E starts with the standard deviation d^-1/2. So the
learned part is as large beside the token embeddings as in `learned`, and the waves as in `sinusoidal`.
"""

import math

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.shared.absolute import JOINED, PLACES, Beyond, Combine, Tabled
from posenc.encodings.shared.sinusoids import check_base, sinusoids


class Hybrid(Tabled):
    name = "hybrid"
    paper = "none; its parts: arXiv 1705.03122 and 1706.03762"
    formula = "sqrt(d) x_t + [sqrt(d) E[t]; PE_t], E[t] of p = learned_share d numbers"
    past_training = "the learned part by `beyond`; the sinusoids continue, in combinations never seen"
    learned = f"(T*((learned_share*d + 0.5)//1) + {JOINED})*{PLACES}"

    def __init__(
        self,
        shape: Shape,
        *,
        learned_share: float,
        base: float,
        beyond: Beyond,
        per_layer: bool,
        combine: Combine,
    ) -> None:
        check_base(base)
        if not 0 < learned_share < 1:
            raise ValueError(f"learned_share={learned_share}: must be between 0 and 1")
        # Rounded half up, as `learned` above says it in a formula. Python's `round` takes halves to even
        # numbers.
        width = math.floor(learned_share * shape.d_model + 0.5)  # p
        if not 0 < width < shape.d_model:
            needs = f"each part needs at least one of d_model={shape.d_model} dimensions"
            raise ValueError(f"learned_share={learned_share}: {needs}")
        super().__init__(shape, width=width, beyond=beyond, per_layer=per_layer, combine=combine)
        self.base = base
        self.width = width
        self.input_scale = shape.d_model**0.5

    def learned_in_a_place(self) -> int:
        return self.shape.positions * self.width

    def rows(self, pos: Tensor, place: int) -> Tensor:
        learned = self.look_up(pos, place) * self.input_scale  # (T, p)
        fixed = sinusoids(pos, self.shape.d_model - self.width, self.base)  # (T, d - p)
        return torch.cat((learned, fixed), dim=-1)  # (T, d_model)
