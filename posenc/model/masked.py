"""Bias and mask of a window, by blocks of queries.

S keys, T queries (the last T of the S keys' tokens), H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.encodings.base import Encoding


class Masked:
    """Bias and mask of a window, by blocks of queries, never held as (S, S).

    With contiguous positions a bias by distance is one row of 2S - 1 values: entry (i, j) is a view of it.
    """

    def __init__(self, encoding: Encoding, pos: Tensor, layer: int, queries: int) -> None:
        self.encoding, self.pos, self.layer = encoding, pos, layer
        self.keys, self.queries = len(pos), queries
        hooks = encoding.hooks
        self.has_bias = bool(hooks & {"bias", "distance_bias"})
        self.has_visible = "visible" in hooks
        # Hooks that see the scores get finite ones and a mask; else the future is -inf from the start.
        self.future = 0.0 if hooks & {"scores", "weights"} else float("-inf")
        contiguous = "positions" not in hooks or not self.has_bias
        self.strip = self._strip() if contiguous and "bias" not in hooks else None

    @property
    def learned(self) -> bool:
        """Whether the bias may have gradients."""
        return self.has_bias and (self.strip is None or self.strip.requires_grad)

    def _strip(self) -> Tensor:
        """Return (H or 1, 2S - 1): the bias at distances S-1, ..., 1, 0, then `future` S - 1 times."""
        device = self.pos.device
        if self.has_bias:
            distances = torch.arange(self.keys - 1, -1, -1, device=device)
            table = self.encoding.distance_bias(distances, self.layer)  # (H, S)
        else:
            table = torch.zeros(1, self.keys, device=device)
        future = torch.full((len(table), self.keys - 1), self.future, device=device)
        return torch.cat((table, future), dim=-1)

    def _block_positions(self, start: int, stop: int, seen: int) -> tuple[Tensor, Tensor]:
        offset = self.keys - self.queries
        return self.pos[offset + start : offset + stop], self.pos[:seen]

    def bias(self, start: int, stop: int, seen: int) -> Tensor:
        """Return the bias of a block of queries, (H or 1, T block, S) float32, with `self.future`."""
        if self.strip is None:
            return self.encoding.bias(*self._block_positions(start, stop, seen), self.layer)
        # Row i of the window reads the strip from S-1-i on: its own key falls on distance 0.
        first = self.queries - stop  # S-1-i of the block's last query
        rows = self.strip[:, first : first + seen + stop - start - 1].unfold(-1, seen, 1)
        return rows.flip(1)

    def allowed(self, start: int, stop: int, seen: int) -> Tensor:
        """Return the causal and visible pairs of a block of queries: (T block, S) bool."""
        offset = self.keys - self.queries
        rows = torch.arange(offset + start, offset + stop, device=self.pos.device)
        keys = torch.arange(seen, device=self.pos.device)
        causal = rows[:, None] >= keys
        if not self.has_visible:
            return causal
        visible = self.encoding.visible(*self._block_positions(start, stop, seen), self.layer)
        return causal & (visible | (rows[:, None] == keys))  # no row without a key: its softmax is nan

    def additive(self, start: int, stop: int, seen: int) -> Tensor:
        """Return the bias where a key may be seen, -inf elsewhere: (H or 1, T block, S) float32."""
        bias = self.bias(start, stop, seen)
        if self.strip is not None and not self.has_visible:
            return bias  # the strip holds the causal mask
        return bias.masked_fill(~self.allowed(start, stop, seen), float("-inf"))
