"""Sandwich: the inner product of sinusoidal positions as a bias by distance.

Formula: score_ij + (H / (8h)) * sum over k < d'/2 of cos((i - j) / base^(2k/d')), for head h = 1..H.
  d'  `width`: 128 as in the paper, whatever the model's width
The sum is the inner product of two sinusoidal positions.
Departures: none. Some subtract d'/2, which changes nothing after the softmax.
"""

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape, float64
from posenc.encodings.shared.sinusoids import check_base, sinusoid_frequencies


class Sandwich(Encoding):
    name = "sandwich"
    paper = "Chi, Fan, Rudnicky, Ramadge 2022, arXiv 2212.10356"
    formula = "score_ij + (H/(8h)) * sum_k cos((i - j) / base^(2k/width))"
    acts_on = "bias"
    past_training = "defined everywhere; the bias keeps falling with the logarithm of the distance"
    learned = "0"
    relative = True

    def __init__(self, shape: Shape, *, base: float, width: int) -> None:
        super().__init__(shape)
        check_base(base)
        if width < 2 or width % 2:
            raise ValueError(f"width={width}: must be even and at least 2")
        self.base = base
        self.width = width

    def learned_parameters(self) -> int:
        return 0

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        exact = float64(r)[:, None]  # (R, 1)
        angle = exact * sinusoid_frequencies(self.width, self.base, exact.device)  # (R, width/2)
        shared = angle.cos().sum(-1).float().to(r.device)  # (R,)
        heads = torch.arange(1, self.shape.n_heads + 1, device=r.device)
        return self.shape.n_heads / (8 * heads)[:, None] * shared  # (H, R)
