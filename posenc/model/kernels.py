"""The one place that chooses how attention is computed.

B batch, T queries (the last T of the S keys' tokens), S keys, H heads, D head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encodings.base import Encoding

# Largest number of float32 scores in a block of queries, so that memory grows linearly. On a CPU 4 MB stay
# in its caches: with 64 MB a forward pass took five times as long at 512 keys, and a training step with 16 MB
# 1.1 to 1.3 times as long (512 keys, batch of 4, one core). A GPU wants large blocks.
MAX_SCORES = 1 << 20
MAX_SCORES_GPU = 1 << 26

# Keys from which scaled_dot_product_attention pays on a CPU. Milliseconds for 8192 tokens, 4 heads of 32,
# bf16, one core, blocks / fused: forward 6/8 at 64 keys, 18/19 at 256, 37/37 at 512, 70/55 at 1024; with
# backward 13/74 at 64, 25/88 at 128, 43/79 at 256, 79/132 at 512, 153/151 at 1024.
FUSED_FROM = 1024


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    x: Tensor,
    pos: Tensor,
    encoding: Encoding,
    layer: int,
    *,
    rotated: bool = False,
) -> Tensor:
    """Attention output (B, H, T, D) of the queries q (B, H, T, D) over k, v (B, H, S, D).

    x (B, S, d_model) is the layer's input, pos (S,) the keys' positions; `rotated` says that q and k have
    met the encoding's `rotate` already. The fused kernel serves where no hook touches the scores themselves
    and the window is long enough for it to pay.
    """
    hooks = encoding.hooks
    # `pos` itself where every token is asked for, so that `rotate` can tell and share its angles
    q_pos = pos if q.shape[2] == len(pos) else pos[-q.shape[2] :]  # (T,)
    state = encoding.prepare(x, q, k, layer) if "prepare" in hooks else None
    scale = q.shape[-1] ** -0.5  # of the head width, before `rotate` may widen it
    if "rotate" in hooks and not rotated:
        q, k = encoding.rotate(q, k, q_pos, pos, layer)
    if hooks.isdisjoint({"bias", "distance_bias", "visible", "scores", "weights", "values"}) and (
        _fused_pays(q, k)
    ):
        return _fused_causal(q, k, v, scale)
    return _blockwise(q, k, v, pos, encoding, layer, state, scale)


def _fused_pays(q: Tensor, k: Tensor) -> bool:
    return q.is_cuda or (q.shape[2] == k.shape[2] and k.shape[2] >= FUSED_FROM)


def _most_scores(q: Tensor) -> int:
    return MAX_SCORES_GPU if q.is_cuda else MAX_SCORES


def _fused_causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    queries, keys = q.shape[2], k.shape[2]
    if k.shape[1] != q.shape[1]:
        k = k.expand(-1, q.shape[1], -1, -1)
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    allowed = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)  # (T, S)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)


def _blockwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pos: Tensor,
    encoding: Encoding,
    layer: int,
    state: object,
    scale: float,
) -> Tensor:
    """Every hook, in blocks of queries; a block's scores are float32 once their product is made."""
    hooks = encoding.hooks
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    block = max(1, min(queries, _most_scores(q) // (batch * heads * keys)))
    masked = Masked(encoding, pos, layer, queries)
    outputs = []
    # The last block first: it sees the most keys, so what it frees serves all others. From the first block
    # on, every one would need a little more than was freed: 500 MB instead of 760 at 4096 keys (bf16, glibc).
    for start in reversed(range(0, queries, block)):
        stop = min(start + block, queries)
        seen = keys - queries + stop  # keys up to the block's last query
        q_block, k_seen, v_seen = q[:, :, start:stop], k[:, :, :seen], v[:, :, :seen]
        q_pos, k_pos = pos[keys - queries + start : seen], pos[:seen]
        s = (q_block @ k_seen.transpose(-1, -2)).float() * scale  # (B, H, T block, S)
        if hooks.isdisjoint({"scores", "weights"}):
            p = torch.softmax(s + masked.additive(start, stop, seen), dim=-1)
        else:
            s = s + masked.bias(start, stop, seen)
            s = encoding.scores(s, q_block, k_seen, q_pos, k_pos, state, layer)
            p = encoding.weights(s, masked.allowed(start, stop, seen), layer)
        p = p.to(v.dtype)
        values = encoding.values(p, v_seen, q_pos, k_pos, layer) if "values" in hooks else p @ v_seen
        outputs.append(values)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs[::-1], dim=2)  # (B, H, T, D)


class Masked:
    """Bias and mask of a window, handed out by blocks of queries, never held as (S, S).

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

    def _strip(self) -> Tensor:
        """(H or 1, 2S - 1): the bias at distances S-1, ..., 1, 0, then `future` S - 1 times."""
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
        """Bias of a block of queries, (H or 1, T block, S) float32; the future as said above."""
        if self.strip is None:
            return self.encoding.bias(*self._block_positions(start, stop, seen), self.layer)
        # Row i of the window reads the strip from S-1-i on: its own key falls on distance 0.
        first = self.queries - stop  # S-1-i of the block's last query
        rows = self.strip[:, first : first + seen + stop - start - 1].unfold(-1, seen, 1)
        return rows.flip(1)

    def allowed(self, start: int, stop: int, seen: int) -> Tensor:
        """(T block, S) bool: causal and visible."""
        offset = self.keys - self.queries
        rows = torch.arange(offset + start, offset + stop, device=self.pos.device)
        keys = torch.arange(seen, device=self.pos.device)
        causal = rows[:, None] >= keys
        if not self.has_visible:
            return causal
        visible = self.encoding.visible(*self._block_positions(start, stop, seen), self.layer)
        return causal & (visible | (rows[:, None] == keys))  # no row without a key: its softmax is nan

    def additive(self, start: int, stop: int, seen: int) -> Tensor:
        """Bias where a key may be seen, -inf elsewhere: (H or 1, T block, S) float32."""
        bias = self.bias(start, stop, seen)
        if self.strip is not None and not self.has_visible:
            return bias  # the strip holds the causal mask
        return bias.masked_fill(~self.allowed(start, stop, seen), float("-inf"))
