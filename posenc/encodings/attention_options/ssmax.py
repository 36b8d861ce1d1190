"""Scalable softmax: log-n scaling with a learned factor.

Formula: softmax over j of f_i z_ij.
  z    the scaled and biased scores
  f_i  s_h log(n_i), s_h learned for each layer and head
  n_i  the number of keys visible to query i, as in `logn`
Setting: `attention.scale=ssmax`.
Paper: Nakanishi 2025, arXiv 2501.19399.
Departure: s starts at 1/log(T), so that training starts near ordinary attention.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posenc.encodings.attention_options.logn import LogN
from posenc.encodings.base import Encoding, Shape


class SSMax(LogN):
    """Multiply scores by a learned s_h times log(visible keys)."""

    name = "ssmax"
    key = "scale"
    choice = "ssmax"

    def __init__(self, shape: Shape, *, counted: Sequence[Encoding]) -> None:
        super().__init__(shape, counted=counted)
        start = 1 / math.log(shape.train_length)
        self.s = nn.Parameter(torch.full((shape.n_layers, shape.n_heads), start))  # (L, H)

    def learned_parameters(self) -> int:
        return self.shape.n_layers * self.shape.n_heads

    def factor(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return self.s[layer].float()[:, None] * self.log_visible(q_pos, k_pos, layer)  # (H, T)
