"""The arguments of the attention kernels: queries, keys and values, and the layer in which they attend.

B batch, T queries (the last T of the S keys' tokens), S keys, H heads, D head width, E that of values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from posenc.encodings.base import Encoding

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class Heads(NamedTuple):
    """Queries, keys and values: q (B, H, T, D), k (B, H or 1, S, D), v (B, H, S, E)."""

    q: Tensor
    k: Tensor
    v: Tensor


class Layer(NamedTuple):
    """An encoding in the layer of this number, and the positions (S,) of the keys.

    `mask` is given where FlexAttention computes the layer: it holds the keys that each query may see. The
    decoder makes it before it calls its blocks, since a compiled block cannot make a mask.
    """

    encoding: Encoding
    number: int
    pos: Tensor
    mask: BlockMask | None = None
