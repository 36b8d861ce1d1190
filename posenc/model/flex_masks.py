"""Which keys a query sees, as runs of neighbouring keys, and the block mask that FlexAttention makes of them.

T queries (the last T of the S keys' tokens), S keys, K runs a query at most. A mask is evaluated once for a
window, in blocks of queries, and stored in 8 K T bytes and (S / 128)^2 block numbers, never as (T, S).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encodings.base import Encoding

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128  # FlexAttention's own side of a block; its kernels' tiles divide it
MOST_RUNS = 4  # a causal mask has 1, a window 1, a window with sinks 2; each costs two loads and compares
MOST_CELLS = 1 << 24  # cells of the mask evaluated at once
KEPT = 64  # masks kept for an encoding: 12 layers at 5 windows


@dataclass(frozen=True)
class Mask:
    """Query t sees the keys first[n, t] <= j < past[n, t] of each run n; an empty run is 0, 0."""

    first: Tensor  # (K, T) int32
    past: Tensor  # (K, T) int32
    blocks: BlockMask
    causal: bool  # nothing hidden but the future
    reach: int  # the largest distance seen

    def allowed(self, start: int, stop: int, seen: int) -> Tensor:
        """(stop - start, seen) bool, of a block of queries."""
        keys = torch.arange(seen, dtype=torch.int32, device=self.first.device)
        first, past = self.first[:, start:stop, None], self.past[:, start:stop, None]
        return ((keys >= first) & (keys < past)).any(0)


_causal: OrderedDict[Any, Mask | None] = OrderedDict()
_visible: WeakKeyDictionary[Encoding, OrderedDict[Any, Mask | None]] = WeakKeyDictionary()
_lock = Lock()


def mask_of(encoding: Encoding, pos: Tensor, layer: int, queries: int) -> Mask | None:
    """The mask of a layer for the last `queries` of the keys at pos (S,); None if it has too many runs.

    Kept by (T, S, device), with a `visible` hook by encoding object and layer as well. Positions are no part
    of the key: with that hook they must be contiguous ones.
    """
    size = (queries, len(pos), pos.device)
    hides = "visible" in encoding.hooks
    with _lock:
        kept = _visible.setdefault(encoding, OrderedDict()) if hides else _causal
        key = (layer, *size) if hides else size
        if key in kept:
            kept.move_to_end(key)
            return kept[key]
        with torch.inference_mode(False), torch.no_grad():  # it may serve a training step next
            runs = _runs(encoding, pos, layer, queries) if hides else causal_runs(queries, pos)
            mask = None if runs is None else _same(kept, size, *runs) or _made(*runs, len(pos), not hides)
        kept[key] = mask
        while len(kept) > KEPT:
            kept.popitem(last=False)
        return mask


def causal_runs(queries: int, pos: Tensor) -> tuple[Tensor, Tensor]:
    """Every query sees all keys up to its own."""
    keys = len(pos)
    past = torch.arange(keys - queries + 1, keys + 1, dtype=torch.int32, device=pos.device)[None]
    return torch.zeros_like(past), past  # (1, T) each


def _runs(encoding: Encoding, pos: Tensor, layer: int, queries: int) -> tuple[Tensor, Tensor] | None:
    """The runs of causal and visible keys, (K, T) int32 each; None if K would exceed MOST_RUNS."""
    keys, device = len(pos), pos.device
    rows = max(1, MOST_CELLS // keys)
    columns = torch.arange(keys, device=device)
    found = []
    for start in range(keys - queries, keys, rows):
        i = columns[start : start + rows, None]
        visible = encoding.visible(pos[start : start + rows], pos, layer)
        allowed = (columns <= i) & (visible | (columns == i))  # its own key always counts
        edges = F.pad(allowed.to(torch.int8), (1, 1)).diff(dim=-1)  # (rows, S + 1): 1 begins, -1 is past
        begins, ends = (edges == 1).nonzero(), (edges == -1).nonzero()  # in order: query, then key
        count = (edges == 1).sum(-1)
        most = int(count.max())
        if most > MOST_RUNS:
            return None
        query = begins[:, 0]
        number = torch.arange(len(query), device=device) - (count.cumsum(0) - count)[query]
        runs = torch.zeros(2, MOST_RUNS, len(i), dtype=torch.int32, device=device)
        runs[0, number, query] = begins[:, 1].int()
        runs[1, number, query] = ends[:, 1].int()
        found.append((most, runs))
    most = max(most for most, _ in found)
    first, past = torch.cat([runs[:, :most] for _, runs in found], dim=-1).unbind(0)
    return first.contiguous(), past.contiguous()


def _same(
    kept: OrderedDict[Any, Mask | None], size: tuple[Any, ...], first: Tensor, past: Tensor
) -> Mask | None:
    """A mask that another layer made already."""
    for key, mask in kept.items():
        if mask is None or key[-3:] != size:
            continue
        if torch.equal(mask.first, first) and torch.equal(mask.past, past):
            return mask
    return None


def _made(first: Tensor, past: Tensor, keys: int, causal: bool) -> Mask:
    from torch.nn.attention.flex_attention import BlockMask

    queries, device = first.shape[1], first.device
    seen = _seen_in_blocks(first, past, keys)  # (T blocks, S blocks)
    full = seen == BLOCK * BLOCK
    own = torch.arange(keys - queries, keys, device=device)
    reach = int(torch.where(past > first, own - first, 0).max())
    blocks = BlockMask.from_kv_blocks(
        *_listed((seen > 0) & ~full),
        *_listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=_causal_mod if causal and queries == keys else _mod(first, past),
        seq_lengths=(queries, keys),
    )
    return Mask(first, past, blocks, causal, reach)


def _seen_in_blocks(first: Tensor, past: Tensor, keys: int) -> Tensor:
    """How many pairs of each block are seen, (T blocks, S blocks) int64, counted from the runs."""
    low = torch.arange(0, keys, BLOCK, device=first.device)  # (S blocks,)
    rows = BLOCK * max(1, MOST_CELLS // (BLOCK * len(low) * len(first)))
    counts = []
    for start in range(0, first.shape[1], rows):
        a, b = (one[:, start : start + rows, None] for one in (first, past))
        seen = (b.minimum(low + BLOCK) - a.maximum(low)).clamp_min(0).sum(0)  # (rows, S blocks)
        counts.append(F.pad(seen, (0, 0, 0, -len(seen) % BLOCK)).unflatten(0, (-1, BLOCK)).sum(1))
    return torch.cat(counts)


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """(T blocks, S blocks) bool -> how many in a row and which ones, those first, with two axes before."""
    which = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1).int()[None, None], which.int()[None, None]


def _causal_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
    return q_idx >= kv_idx


def _mod(first: Tensor, past: Tensor) -> Any:
    a, z = first[0].contiguous(), past[0].contiguous()

    def in_first(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx >= a[q_idx]) & (kv_idx < z[q_idx])

    if len(first) == 1:
        return in_first
    others = _mod(first[1:], past[1:])

    def in_any(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return in_first(b, h, q_idx, kv_idx) | others(b, h, q_idx, kv_idx)

    return in_any
