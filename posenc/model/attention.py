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
            q, k, v = self.qkv(x).view(batch, length, 3, self.n_heads, self.head_dim).unbind(2)
        else:
            w_q, w_kv = self.qkv.weight.split((width, 2 * width))
            q = F.linear(x[:, -wanted:], w_q).view(batch, wanted, self.n_heads, self.head_dim)
            k, v = F.linear(x, w_kv).view(batch, length, 2, self.n_heads, self.head_dim).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T or S, D)
        y = attend(q, k, v, x, pos, encoding, self.layer)  # (B, H, T, D)
        return self.out(y.transpose(1, 2).reshape(batch, wanted, width))  # (B, T, d_model)
