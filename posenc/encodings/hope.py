"""HoPE: only the fast pairs are rotated; the others carry no position.

Formula: RoPE, theta_k = base^(-2k/D), for the pairs with turns * 2 pi / theta_k <= T: so many of their
periods fit into the training length. The other pairs are left as they are.
Setting:
  turns  how many periods must fit into T. T is `context_length`, also where positions are drawn.
Departure: the paper looks for the "activated" pairs in trained models. Their periods are near the training
length, and it rotates only faster pairs. Here a pair is rotated if `turns` periods fit, by default one.
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
        if not turns > 0:  # also refuses nan
            raise ValueError(f"turns={turns}: must be above 0")
        self.turns = turns
        # on the CPU, since the model may be built on the meta device, which has no values
        is_rotated = self.frequencies(torch.device("cpu")) > 0
        # With no pair rotated it would be `nope` under another name.
        if not is_rotated.any():
            raise ValueError(f"turns={turns}: no pair turns that often within T={shape.train_length}")

    def learned_parameters(self) -> int:
        return 0

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return RoPE's frequencies, with zero for the pairs that are not rotated: (D/2,) float64."""
        theta = super().frequencies(device)  # (D/2,)
        period = 2 * math.pi / theta  # tokens
        # Zeros and no shorter list, so that a pair keeps its place in the head.
        return theta.where(self.turns * period <= self.shape.train_length, 0.0)
