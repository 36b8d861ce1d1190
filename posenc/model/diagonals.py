"""Sums along diagonals: what a bias by distance r = i - j gets back from the gradient of the scores.

B batch, H heads, T queries (the last T of the S keys' tokens), S keys, L side of a square tile.
No index tensors: rows read with another stride have the diagonals in their columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def sums_by_distance(ds: Tensor) -> Tensor:
    """(B, H, T, S) -> (H, S): entry r sums ds[b, h, t, i - r], i = S - T + t, over b and t.

    The future (j > i) must be exactly 0, as the gradient of a causal softmax is: it is read as padding.
    """
    # The batch first: one pass over memory at 7 GB/s on one core, where both sums at once go at 1 GB/s.
    whole = (ds[0] if len(ds) == 1 else ds.sum(0)).contiguous()  # (H, T, S)
    heads, queries, keys = whole.shape
    # Row t, read from its key i - (S-1) on, ends at its own key i. The keys before the text lie in row t - 1
    # right of its own key, which is its future: zeros. Row 0 has no row before it and is added by hand.
    start = whole.storage_offset() + keys + 2 - queries
    rows = whole.as_strided((heads, queries - 1, keys), (queries * keys, keys + 1, 1), start)
    sums = rows.sum(1)  # (H, S), the farthest distance first
    sums[:, queries - 1 :] += whole[:, 0, : keys - queries + 1]
    return sums.flip(-1)


def tile_sums(tiles: Tensor) -> Tensor:
    """(..., L, L) -> (..., 2L): entry L + d sums the diagonal i - j = d, -L < d < L; entry 0 is 0."""
    side = tiles.shape[-1]
    # Reversed rows at steps of 2L + 1 in a flat buffer: in rows of 2L, (i, j) stands in column L + i - j.
    flat = F.pad(tiles.flip(-1), (1, side)).flatten(-2)  # (..., L (2L + 1))
    return flat[..., : 2 * side * side].unflatten(-1, (side, 2 * side)).sum(-2)


def joined(sums: Tensor) -> Tensor:
    """`tile_sums` of the block diagonals 0..C-1, (H, C, 2L), in c distances around c L -> (H, C L)."""
    side = sums.shape[-1] // 2
    below, above = sums.split(side, dim=-1)  # distances (c-1) L ... c L - 1, and c L ... (c+1) L - 1
    return (above + torch.cat((below[:, 1:], torch.zeros_like(below[:, :1])), dim=1)).flatten(1)
