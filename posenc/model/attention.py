"""Causal self-attention that calls the encoding's hooks and leaves the arithmetic to `kernels.attend`.

B batch, T queries, S keys, H heads, D head width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding
from posenc.model.kernels import attend


class Attention(nn.Module):
    """Multi-head attention of one layer; knows hooks, no encoding's name."""

    decoupled = False

    def __init__(self, d_model: int, n_heads: int, layer: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.layer = layer
        self.derived: dict[str, int] = {}  # parameters that are null, as they follow from the width
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    @staticmethod
    def encoded_width(head_dim: int, **others: object) -> int:
        """Width of the queries and keys that the encoding turns: the whole head."""
        return head_dim

    def forward(self, x: Tensor, pos: Tensor, encoding: Encoding, wanted: int) -> Tensor:
        """x (B, S, d_model) at positions pos (S,) -> the last `wanted` tokens' output (B, T, d_model)."""
        batch, length, width = x.shape
        if wanted == length:
            q, k, v = self._by_head(self.qkv(x), 3)
        else:
            w_q, w_kv = self.qkv.weight.split((width, 2 * width))
            (q,) = self._by_head(F.linear(x[:, -wanted:], w_q), 1)
            k, v = self._by_head(F.linear(x, w_kv), 2)
        y = attend(q, k, v, x, pos, encoding, self.layer)  # (B, H, T, D)
        return self.out(y.transpose(1, 2).reshape(batch, wanted, width))  # (B, T, d_model)

    def _by_head(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B, S, parts * d_model) -> `parts` of (B, H, S, D), contiguous: one copy, not one a product."""
        x = x.view(*x.shape[:2], parts, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        return x.contiguous().unbind(0)
