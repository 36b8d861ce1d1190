"""HoPE: only the fast pairs are turned; the others carry no position at all.

Formula: RoPE, theta_k = base^(-2k/D), where a whole turn fits into the training length, 2 pi / theta_k <= T;
every other pair is left as it is, so that it can only carry content.
It acts on queries and keys. `turns`: how many turns must fit into T for a pair to stay rotary. T is the
context length, also where positions are drawn.
Paper: Chen, Lv, Luan, Wang, Liu 2024, arXiv 2410.21216.
Departures: the paper finds the "activated" pairs, of periods near the training length, in trained models,
and keeps the faster ones; here the border is a number, one turn within T unless `turns` says otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.families.rotary import Layout, Rotary


class HoPE(Rotary):
    """RoPE's high frequencies, and content alone in the rest."""

    name = "hope"
    paper = "Chen, Lv, Luan, Wang, Liu 2024, arXiv 2410.21216"
    formula = "pairs turned by t * theta_k where 2 pi turns / theta_k <= T; the others left alone"
    past_training = (
        "of pairs that turn at least once within T all angles were met in training, but not together"
    )
    learned = "0"
    traps = ("The border belongs to the training length: at another T other pairs are turned.",)

    def __init__(self, shape: Shape, *, base: float, layout: Layout, turns: float) -> None:
        super().__init__(shape, base=base, layout=layout, width=shape.head_dim)
        if not turns > 0:
            raise ValueError(f"turns={turns}: must be above 0")
        self.turns = turns
        if not (self.frequencies(torch.device("cpu")) > 0).any():
            raise ValueError(f"turns={turns}: no pair turns as often within T={shape.train_length}")

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Of the family; those whose turns do not fit into the training length are zero."""
        theta = super().frequencies(device)  # (D/2,)
        return theta.where(2 * math.pi * self.turns / theta <= self.shape.train_length, 0.0)
