"""The arguments of the attention kernels: queries, keys and values, and the layer in which they attend.

B batch, T queries (the last T of the S keys' tokens), S keys, H heads, D head width, E that of values.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from posenc.encodings.base import Encoding


class Heads(NamedTuple):
    """Queries, keys and values: q (B, H, T, D), k (B, H or 1, S, D), v (B, H, S, E)."""

    q: Tensor
    k: Tensor
    v: Tensor


class Layer(NamedTuple):
    """An encoding in the layer of this number, and the positions (S,) of the keys."""

    encoding: Encoding
    number: int
    pos: Tensor
