"""Learned and sinusoidal side by side: the first p of d dimensions from a table, the others fixed waves.

Formula: sqrt(d) x_t + [sqrt(d) E[t]; PE_t], E a table of T rows of p numbers, p = learned_share * d rounded,
PE_t the sinusoids of width d - p (their frequencies cover the whole range).
  beyond  the p learned dimensions past T: untrained | clamp | truncate | refuse, as in `learned`
Paper: none; background material credits it to T5, which has a bias by distance instead.
Choice: sqrt(d) on both x and E, with E of standard deviation d^-1/2 at the start, so that each part has the
size relative to the token embeddings that it has in `learned` and in `sinusoidal`.
"""

import math

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.families import JOINED, PLACES, Beyond, Combine, Tabled, check_base, sinusoids


class Hybrid(Tabled):
    name = "hybrid"
    paper = "none (background material); parts: arXiv 1705.03122 and 1706.03762"
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
        width = math.floor(learned_share * shape.d_model + 0.5) if 0 < learned_share < 1 else 0
        if not 0 < width < shape.d_model:
            needs = f"each part needs at least one of d_model={shape.d_model} dimensions"
            raise ValueError(f"learned_share={learned_share}: {needs}")
        super().__init__(shape, width=width, beyond=beyond, per_layer=per_layer, combine=combine)
        self.base = base
        self.input_scale = shape.d_model**0.5

    def rows(self, pos: Tensor, place: int) -> Tensor:
        learned = self.look_up(pos, place) * self.input_scale  # (T, p)
        fixed = sinusoids(pos, self.shape.d_model - learned.shape[-1], self.base)  # (T, d - p)
        return torch.cat((learned, fixed), dim=-1)  # (T, d_model)
