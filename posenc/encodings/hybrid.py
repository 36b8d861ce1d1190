"""Learned and sinusoidal side by side: the first p of d dimensions from a table, the others fixed waves.

Formula: x'_t = sqrt(d) x_t + [sqrt(d) E[t]; PE_t], E a table of T rows of p numbers, p = learned_share d to
the nearest whole number, PE_t the sinusoids of width d - p (their frequencies run over the whole range).
beyond, past T: what the p learned dimensions are (untrained | clamp | truncate | refuse, as in `learned`).
Paper: none. Background material credits it to T5, which has a bias by distance and nothing of this.
Choices: sqrt(d) stands before x and E alike, with E of standard deviation d^-1/2 at the start. So each part
stands to the token embeddings as it does in `learned` and in `sinusoidal`. With no factor PE would be
sqrt(d/2) times as large as the tokens; with one on x alone E would be sqrt(d) times smaller than they are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.families.absolute import JOINED, PLACES, Combine, check_base, sinusoids
from posenc.encodings.families.table import Beyond, Tabled


class Hybrid(Tabled):
    """Learned rows in the first dimensions, sinusoids in the rest."""

    name = "hybrid"
    paper = "none (background material); parts: arXiv 1705.03122 and 1706.03762"
    formula = "sqrt(d) x_t + [sqrt(d) E[t]; PE_t], E[t] of p = learned_share d numbers"
    past_training = (
        "the learned part by the policy `beyond`; the sinusoids go on, in sums of phases never seen"
    )
    learned = f"(T*((learned_share*d + 0.5)//1) + {JOINED})*{PLACES}"
    traps = (*Tabled.traps, "Credited to T5 in some places; T5 has a bias by distance.")

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
            raise ValueError(
                f"learned_share={learned_share}: must be above 0 and below 1 and leave both parts at least "
                f"one of d_model={shape.d_model} dimensions"
            )
        super().__init__(shape, width=width, beyond=beyond, per_layer=per_layer, combine=combine)
        self.base = base
        self.input_scale = shape.d_model**0.5

    def rows(self, pos: Tensor, place: int) -> Tensor:
        learned = self.looked_up(pos, place) * self.input_scale  # (T, p)
        fixed = sinusoids(pos, self.shape.d_model - learned.shape[-1], self.base)  # (T, d - p)
        return torch.cat((learned, fixed), dim=-1)  # (T, d_model)
