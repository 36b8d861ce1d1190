"""The arguments of the attention kernels: queries, keys and values, and the layer in which they attend.

B batch, S keys, T queries (those of the last T tokens), H heads, D width of a head's queries and keys, E of
its values.
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
    """What the attention of one layer needs beside its tensors."""

    encoding: Encoding
    number: int  # of the layer, from 0
    pos: Tensor  # positions of the keys, (S,) int64
    # The keys that each query may see, if FlexAttention computes the layer. The decoder makes it before it
    # calls its blocks, since a compiled block cannot make a mask.
    mask: BlockMask | None = None
