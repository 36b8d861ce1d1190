"""The one place that chooses how attention is computed.

B batch, T queries (the last T of the S keys' tokens), S keys, H heads, D head width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.model.fused import softmax_attention

# Largest number of float32 scores in a block of queries, so that memory grows linearly. On a CPU 4 MB stay
# in its caches: with 64 MB a forward pass took five times as long at 512 keys, and a training step with 16 MB
# 1.1 to 1.3 times as long (512 keys, batch of 4, one core). A GPU wants large blocks.
MAX_SCORES = 1 << 20
MAX_SCORES_GPU = 1 << 26

# What pays on a CPU, by measurement: milliseconds for 8192 tokens, 4 heads of 32, bf16, two cores of an AMD
# EPYC. Without gradients the fused kernel may also be given a bias, in blocks of queries (`masked`).
#   keys                                    64   128   256   512  1024  2048  4096
#   forward and backward, blocks            11    14    28    48    91   191   429
#                         causal            41    45    42    65    76   124   227
#   forward alone, blocks                  3.5   5.8    10    18    36    73   152
#                  causal                  4.7   6.7    10    18    25    42    77
#                  masked                              9.8    17    29          106
#   the same with ALiBi's bias, blocks     3.7    11    24    41    71   128   226
#                               masked                   12    21    35          170
# A bias in training is as fast in blocks (1024 keys: 111 against 103 and more), and a learned one would make
# the fused kernel fall back to a quadratic one.
CAUSAL_FROM = 1024  # keys
MASKED_FROM = 256
MASKED_QUERIES = 128  # a block: 64 and 256 are within 10%
FLEX_FROM = 128  # keys, on a GPU: one block of its masks. Not measured yet: scripts/check_gpu.py
MASK_ENTRIES = 1 << 22  # 16 MB of float32 at most

# Numbers of keys that the blocks of a long window may have. oneDNN makes and keeps code for every shape of a
# bf16 product: with one of its own for each block a pass of 16384 tokens held 714 MB instead of 129 and took
# 1.4 times as long (cope, 2 heads, one core).
SHAPES = 32


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
    met the encoding's `rotate` already.
    """
    hooks = encoding.hooks
    # `pos` itself where every token is asked for, so that `rotate` can tell and share its angles
    q_pos = pos if q.shape[2] == len(pos) else pos[-q.shape[2] :]  # (T,)
    state = encoding.prepare(x, q, k, layer) if "prepare" in hooks else None
    scale = q.shape[-1] ** -0.5  # of the head width, before `rotate` may widen it
    if "rotate" in hooks and not rotated:
        q, k = encoding.rotate(q, k, q_pos, pos, layer)
    kernel = choose(q, k, v, pos, encoding, layer)
    if kernel == "causal":
        return _causal(q, k, v, scale)
    if kernel == "masked":
        return _masked(q, k, v, pos, encoding, layer, scale)
    if kernel == "flex":
        from posenc.model.flex import attend_flex  # here: it takes a second of imports with it

        return attend_flex(q, k, v, pos, encoding, layer, scale)
    return _blockwise(q, k, v, pos, encoding, layer, state, scale)


def choose(q: Tensor, k: Tensor, v: Tensor, pos: Tensor, encoding: Encoding, layer: int) -> str:
    """Which kernel serves these tensors and hooks: `causal`, `masked`, `flex` (all fused) or `blocks`."""
    hooks, queries, keys = encoding.hooks, q.shape[2], k.shape[2]
    if not hooks.isdisjoint({"scores", "weights", "values"}):
        return "blocks"
    biased = not hooks.isdisjoint({"bias", "distance_bias", "visible"})
    if q.is_cuda:
        if not biased:
            return "causal"
        from posenc.model.flex import serves

        return "flex" if keys >= FLEX_FROM and serves(encoding, q, k, v, pos, layer) else "blocks"
    if not biased and queries == keys >= CAUSAL_FROM:
        return "causal"
    if not torch.is_grad_enabled() and keys >= MASKED_FROM and q.shape[-1] == v.shape[-1]:
        return "masked"
    return "blocks"


def _most_scores(q: Tensor) -> int:
    return MAX_SCORES_GPU if q.is_cuda else MAX_SCORES


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    queries, keys = q.shape[2], k.shape[2]
    if k.shape[1] != q.shape[1]:
        k = k.expand(-1, q.shape[1], -1, -1)
    if queries == keys:
        if q.is_cuda or q.shape[-1] == v.shape[-1]:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        # A CPU's fused kernel wants one width, and what it falls back to holds (T, S) scores: 1.5 GB at 8192
        # tokens of two heads.
        width, widest = v.shape[-1], max(q.shape[-1], v.shape[-1])
        q, k, v = (F.pad(one, (0, widest - one.shape[-1])) for one in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)[..., :width]
    allowed = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)  # (T, S)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)


def _masked(
    q: Tensor, k: Tensor, v: Tensor, pos: Tensor, encoding: Encoding, layer: int, scale: float
) -> Tensor:
    """The fused kernel with bias and mask in one float32 tensor, made for a block of queries at a time."""
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    if k.shape[1] != heads:
        k = k.expand(-1, heads, -1, -1)
    masked, outputs = Masked(encoding, pos, layer, queries), []
    block = max(1, min(MASKED_QUERIES, MASK_ENTRIES // (heads * keys)))
    for start in reversed(range(0, queries, block)):
        stop = min(start + block, queries)
        seen = keys - queries + stop
        additive = masked.additive(start, stop, seen)[None]  # (1, H or 1, T block, S)
        some = part(q, start, stop), part(k, 0, seen), part(v, 0, seen)
        outputs.append(_with_float32_mask(*some, additive, scale))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs[::-1], dim=2)  # (B, H, T, D)


def _with_float32_mask(q: Tensor, k: Tensor, v: Tensor, additive: Tensor, scale: float) -> Tensor:
    """Autocast would round the bias too: steps of 0.25 from 32 on, where Sandwich's neighbours differ less.

    A CPU's kernel takes both types; a GPU's wants one, so there it is left to autocast.
    """
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=additive, scale=scale)
    with torch.autocast("cpu", enabled=False):
        q, k = q.to(v.dtype), k.to(v.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=additive, scale=scale)


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
    plain = hooks.isdisjoint({"scores", "weights", "values"})
    step = block * -(-queries // (block * SHAPES))
    outputs = []
    # The last block first: it sees the most keys, so what it frees serves all others. From the first block
    # on, every one would need a little more than was freed: 500 MB instead of 760 at 4096 keys (bf16, glibc).
    for start in reversed(range(0, queries, block)):
        stop = min(start + block, queries)
        seen = keys - queries + stop  # keys up to the block's last query
        held = keys - queries + min(queries, -(-stop // step) * step)  # and more, so that few shapes occur
        q_block, k_held, v_held = part(q, start, stop), part(k, 0, held), part(v, 0, held)
        if plain:
            additive = masked.additive(start, stop, held)
            outputs.append(softmax_attention(q_block, k_held, v_held, additive, scale))
            continue
        q_pos, k_pos = pos[keys - queries + start : seen], pos[:seen]
        s = (q_block @ k_held.transpose(-1, -2))[..., :seen].float() * scale  # (B, H, T block, S)
        s = s + masked.bias(start, stop, seen)
        s = encoding.scores(s, q_block, part(k, 0, seen), q_pos, k_pos, state, layer)
        p = encoding.weights(s, masked.allowed(start, stop, seen), layer).to(v.dtype)
        if "values" in hooks:
            outputs.append(encoding.values(p, part(v, 0, seen), q_pos, k_pos, layer))
        else:
            outputs.append((p if held == seen else F.pad(p, (0, held - seen))) @ v_held)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs[::-1], dim=2)  # (B, H, T, D)


def part(x: Tensor, start: int, stop: int) -> Tensor:
    """x (B, H, T, D) from start to stop; x itself where that is all: the gradient of a slice is a copy."""
    return x if start == 0 and stop == x.shape[2] else x[:, :, start:stop]


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
