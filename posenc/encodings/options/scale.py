"""Attention that knows how many keys it sees: logits times log n, against the flattening of a longer softmax.

Formula: softmax_j(f_i z_ij), z the biased logits, n_i the number of keys that query i sees:
  logn   f_i = log(n_i) / log(T), T the training length, so that it is 1 for a query that sees T keys
  ssmax  f_i = s_h log(n_i), s_h learned for each layer and head, 1/log(T) at the start
n_i counts visible keys, not the window's length: a longer text leaves its prefix alone. n_i = 1
gives f_i = 0, which changes nothing where there is one key.
Papers: Chiang, Cholak 2022, arXiv 2202.12172 (logn); Nakanishi 2025, arXiv 2501.19399 (ssmax).
Departure: 1/log(T), a constant in logn and the start of s in ssmax, lets training begin near ordinary
attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape


class LogN(Encoding):
    """Logits times log(visible keys) / log(T)."""

    name = "logn"
    acts_on = "scores"
    relative = True
    uses_positions = False

    def __init__(self, shape: Shape, *, counted: Sequence[Encoding]) -> None:
        super().__init__(shape)
        if shape.train_length < 2:
            raise ValueError(f"context_length={shape.train_length}: log(T) must be above zero")
        self.masking = tuple(one for one in counted if "visible" in one.hooks)  # not registered twice

    def log_visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        """log(n_i) of the last T of S tokens: (T,) float32."""
        queries, keys = len(q_pos), len(k_pos)
        row = torch.arange(keys - queries, keys, device=q_pos.device)  # (T,) index of the query's own key
        if not self.masking:
            return (row + 1).float().log()
        index = torch.arange(keys, device=q_pos.device)
        seen = index[None, :] <= row[:, None]  # (T, S)
        for one in self.masking:
            seen = seen & one.visible(q_pos, k_pos, layer)
        return (seen | (index[None, :] == row[:, None])).sum(-1).float().log()

    def factor(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        """f_i for each head or for all: (H or 1, T) float32."""
        return self.log_visible(q_pos, k_pos, layer)[None] / math.log(self.shape.train_length)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * self.factor(q_pos, k_pos, layer)[..., None]  # (B, H, T, S)


class SSMax(LogN):
    """Scalable softmax: logits times a learned s_h log(visible keys)."""

    name = "ssmax"

    def __init__(self, shape: Shape, *, counted: Sequence[Encoding]) -> None:
        super().__init__(shape, counted=counted)
        self.s = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads))  # (L, H)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        nn.init.constant_(parameter, 1 / math.log(self.shape.train_length))

    def factor(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return self.s[layer].float()[:, None] * self.log_visible(q_pos, k_pos, layer)  # (H, T)


SCALES: dict[str, type[LogN]] = {"logn": LogN, "ssmax": SSMax}
