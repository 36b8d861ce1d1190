"""Sandwich: what sinusoidal positions say of the distance, and nothing else of them.

Formula: score_ij + (H / (8h)) * sum over k < d'/2 of cos(r / 10000^(2k/d')), r = i - j, head h = 1..H. It is
the inner product of two sinusoidal positions, without the token embeddings they are mixed with.
It acts on the scores as a bias by distance. d' (`width`) = 128 is the paper's, whatever the model's width.
Paper: Chi, Fan, Rudnicky, Ramadge 2022, arXiv 2212.10356.
Departures: none; subtracting d'/2, as some do, changes nothing after the softmax.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape, float64
from posenc.encodings.families.absolute import check_base, sinusoid_frequencies


class Sandwich(Encoding):
    """The sinusoids' inner product by distance, steeper for the first heads."""

    name = "sandwich"
    paper = "Chi, Fan, Rudnicky, Ramadge 2022, arXiv 2212.10356"
    formula = "score_ij + (H/(8h)) * sum_k cos((i - j) / base^(2k/width))"
    acts_on = "bias"
    past_training = (
        "defined everywhere; on the whole the sum goes on falling with the logarithm of the distance"
    )
    learned = "0"
    relative = True
    traps = ("The sum ripples: it falls on the whole with the distance, not from each one to the next.",)

    def __init__(self, shape: Shape, *, base: float, width: int) -> None:
        super().__init__(shape)
        check_base(base)
        if width < 2 or width % 2:
            raise ValueError(f"width={width}: must be even and at least 2")
        self.base, self.width = base, width

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        exact = float64(r)[:, None]  # (R, 1)
        angle = exact * sinusoid_frequencies(self.width, self.base, exact.device)  # (R, width/2)
        shared = angle.cos().sum(-1).float().to(r.device)  # (R,)
        heads = torch.arange(1, self.shape.n_heads + 1, device=r.device)
        return self.shape.n_heads / (8 * heads)[:, None] * shared  # (H, R)
