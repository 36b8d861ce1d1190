"""Sandwich: the inner product of sinusoidal positions as a bias by distance.

Formula: score_ij + (H / (8h)) * sum over k < d'/2 of cos((i - j) / base^(2k/d')), for head h = 1..H.
  d'  `width`: 128 as in the paper, whatever the model's width
The sum is the inner product of two sinusoidal positions.
Departures: none. Some implementations subtract d'/2 from the sum. After the softmax that changes nothing.
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
        # float64: at a distance of 65 536 a float32 angle is off by up to 0.004 radians.
        r64 = float64(r)[:, None]  # (R, 1)
        angle = r64 * sinusoid_frequencies(self.width, self.base, r64.device)  # (R, width/2)
        # Summed in float64 as well: 64 cosines that nearly cancel would leave their rounding.
        sum_of_cosines = angle.cos().sum(-1).float().to(r.device)  # (R,)
        # From 1, since head 0 would divide by 0.
        head = torch.arange(1, self.shape.n_heads + 1, device=r.device)  # h, (H,)
        return self.shape.n_heads / (8 * head)[:, None] * sum_of_cosines  # (H, R)
