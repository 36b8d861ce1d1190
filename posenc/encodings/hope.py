"""HoPE: only the fast pairs are rotated; the others carry no position.

Formula: RoPE, theta_k = base^(-2k/D), for pairs whose period fits into the training length: 2 pi turns /
theta_k <= T; every other pair is left as it is.
  turns  how many periods must fit into T (context_length, also if positions are drawn)
Departure: the paper finds the "activated" pairs, with periods near the training length, in trained models,
and keeps the faster ones; here the border is one period within T unless `turns` is set.
"""

import math

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.shared.rotary import Layout, Rotary


class HoPE(Rotary):
    name = "hope"
    paper = "Chen, Lv, Luan, Wang, Liu 2024, arXiv 2410.21216"
    formula = "pairs rotated by t * theta_k where 2 pi turns / theta_k <= T; the others not"
    past_training = "each rotated pair met all its angles in training, but not in these combinations"
    learned = "0"

    def __init__(self, shape: Shape, *, base: float, layout: Layout, turns: float) -> None:
        super().__init__(shape, base=base, layout=layout, width=shape.head_dim)
        if not turns > 0:
            raise ValueError(f"turns={turns}: must be above 0")
        self.turns = turns
        if not (self.frequencies(torch.device("cpu")) > 0).any():
            raise ValueError(f"turns={turns}: no pair turns as often within T={shape.train_length}")

    def learned_parameters(self) -> int:
        return 0

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return RoPE's, those whose period is too long for T zero: (D/2,) float64."""
        theta = super().frequencies(device)  # (D/2,)
        return theta.where(2 * math.pi * self.turns / theta <= self.shape.train_length, 0.0)
