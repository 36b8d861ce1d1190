"""Scaled dot-product attention with an encoding's hooks, and the choice of its kernel: the hooks decide.

B batch, T queries (the last T of the S keys' tokens), S keys, H heads, D head width, E that of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from posenc.encodings.base import Encoding

# Largest number of float32 scores in a block of queries (bf16: twice as many), so that memory grows linearly.
# On a CPU 4 MB stay in its caches: a training step at 512 keys (ALiBi, bf16, two cores) takes 1.04 times as
# long with 8 MB and 1.05 times with 2 MB. A GPU wants large blocks.
MAX_SCORES = 1 << 20
MAX_SCORES_GPU = 1 << 26

# From how many keys on a CPU's fused kernel is quicker than blocks of queries (8192 tokens, 4 heads of 32, on
# two cores). With gradients it takes 1.2 to 2.6 times as long at 512 keys, 0.7 to 0.9 at 2048. In float32
# without gradients it may have a bias (`masked`): 0.7 to 0.85. A learned one in training makes it quadratic.
CAUSAL_FROM = 2048  # keys; from there on also for memory: blocks keep their weights for the backward pass
MASKED_FROM = 256
MASKED_QUERIES = 128  # a block: 64 and 256 are within 10%
FLEX_FROM = 128  # keys, on a GPU: one block of its masks. Not measured yet: scripts/checks/gpu.py
MASK_ENTRIES = 1 << 22  # 16 MB of float32 at most

# Numbers of keys that the blocks of a long window may have. oneDNN makes and keeps code for every shape of a
# bf16 product: with one of its own for each block a pass of 16384 tokens held 714 MB instead of 129 and took
# 1.4 times as long (cope, 2 heads, one core).
SHAPES = 32


class Block(NamedTuple):
    """Queries from `start` to `stop`, and the number of keys, from the first on, that they meet."""

    start: int
    stop: int
    keys: int


Additive = Callable[[Block], Tensor]  # bias, and -inf where a key may not be seen: (H or 1, T block, keys)


class Masked:
    """Bias and mask by blocks of queries; by distance at contiguous positions they are views of one row."""

    def __init__(self, encoding: Encoding, pos: Tensor, layer: int, queries: int) -> None:
        self.encoding, self.pos, self.layer = encoding, pos, layer
        self.keys, self.queries = len(pos), queries
        self.query_pos = pos[len(pos) - queries :]
        hooks = encoding.hooks
        self.has_bias = bool(hooks & {"bias", "distance_bias"})
        self.has_visible = "visible" in hooks
        # Hooks that see the scores get finite ones and a mask; else the future is -inf from the start.
        self.future = 0.0 if hooks & {"scores", "weights"} else float("-inf")
        contiguous = "positions" not in hooks or not self.has_bias
        self.strip = self._strip() if contiguous and "bias" not in hooks else None
        # whether the bias may have gradients
        self.learned = self.has_bias and (self.strip is None or self.strip.requires_grad)

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

    def bias(self, start: int, stop: int, seen: int) -> Tensor:
        """Return the bias of a block of queries, (H or 1, T block, S) float32, with `self.future`."""
        if self.strip is None:
            return self.encoding.bias(self.query_pos[start:stop], self.pos[:seen], self.layer)
        # Row i of the window reads the strip from S-1-i on: its own key falls on distance 0.
        first = self.queries - stop  # S-1-i of the block's last query
        rows = self.strip[:, first : first + seen + stop - start - 1].unfold(-1, seen, 1)
        return rows.flip(1)

    def allowed(self, start: int, stop: int, seen: int) -> Tensor:
        """Return the causal and visible pairs of a block of queries: ([H,] T block, S) bool."""
        offset = self.keys - self.queries
        rows = torch.arange(offset + start, offset + stop, device=self.pos.device)
        keys = torch.arange(seen, device=self.pos.device)
        causal = rows[:, None] >= keys
        if not self.has_visible:
            return causal
        visible = self.encoding.visible(self.query_pos[start:stop], self.pos[:seen], self.layer)
        return causal & (visible | (rows[:, None] == keys))  # no row without a key: its softmax is nan

    def additive(self, start: int, stop: int, seen: int) -> Tensor:
        """Return the bias where a key may be seen, -inf elsewhere: (H or 1, T block, S) float32."""
        bias = self.bias(start, stop, seen)
        if self.strip is not None and not self.has_visible:
            return bias  # the strip holds the causal mask
        return bias.masked_fill(~self.allowed(start, stop, seen), float("-inf"))


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
    """Return (B, H, T, D) of q (B, H, T, D), k and v (B, H, S, D), x (B, S, d_model), pos (S,) of the keys.

    `rotated`: q and k have been through the encoding's `rotate` already.
    """
    hooks = encoding.hooks
    # `pos` itself where all tokens are queries: `rotate` recognises it and shares the angles
    q_pos = pos if q.shape[2] == len(pos) else pos[-q.shape[2] :]  # (T,)
    state = encoding.prepare(x, q, k, layer) if "prepare" in hooks else None
    scale = q.shape[-1] ** -0.5  # of the head width, before `rotate` may widen it
    if "rotate" in hooks and not rotated:
        q, k = encoding.rotate(q, k, q_pos, pos, layer)
    kernel = choose(q, k, v, pos, encoding, layer)
    if kernel == "blocks":
        return _blockwise(q, k, v, pos, encoding, layer, state, scale)
    k = k.expand(-1, q.shape[1], -1, -1)
    if kernel == "causal":
        return _causal(q, k, v, scale)
    if kernel == "masked":
        return _masked(q, k, v, pos, encoding, layer, scale)
    from posenc.model.flex import attend_flex  # lazy: it costs a second of imports

    return attend_flex(q, k, v, pos, encoding, layer, scale)


def choose(q: Tensor, k: Tensor, v: Tensor, pos: Tensor, encoding: Encoding, layer: int) -> str:
    """Name the kernel for these tensors and hooks: `causal`, `masked`, `flex` (all fused) or `blocks`."""
    hooks, queries, keys = encoding.hooks, q.shape[2], k.shape[2]
    if not hooks.isdisjoint({"scores", "weights", "values"}):
        return "blocks"
    biased = not hooks.isdisjoint({"bias", "distance_bias", "visible"})
    if q.is_cuda:
        if not biased:
            return "causal"
        from posenc.model.flex import serves

        return "flex" if keys >= FLEX_FROM and serves(encoding, q, k, v) else "blocks"
    if q.shape[-1] != v.shape[-1]:  # what a CPU's fused kernel has no code for
        return "blocks"
    if not biased and queries == keys >= CAUSAL_FROM:
        return "causal"
    if not torch.is_grad_enabled() and keys >= MASKED_FROM and v.dtype == torch.float32:
        return "masked"
    return "blocks"


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    queries, keys = q.shape[2], k.shape[2]
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    allowed = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)  # (T, S)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)


def _masked(
    q: Tensor, k: Tensor, v: Tensor, pos: Tensor, encoding: Encoding, layer: int, scale: float
) -> Tensor:
    """Run the fused kernel with bias and mask in one float32 tensor a block of queries."""
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    masked, outputs = Masked(encoding, pos, layer, queries), []
    block = max(1, min(MASKED_QUERIES, MASK_ENTRIES // (heads * keys)))
    for start in reversed(range(0, queries, block)):
        stop = min(start + block, queries)
        seen = keys - queries + stop
        additive = masked.additive(start, stop, seen)[None]  # (1, H or 1, T block, S)
        some = part(q, start, stop), part(k, 0, seen), part(v, 0, seen)
        outputs.append(F.scaled_dot_product_attention(*some, attn_mask=additive, scale=scale))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs[::-1], dim=2)  # (B, H, T, D)


def _blockwise(
    q: Tensor, k: Tensor, v: Tensor, pos: Tensor, encoding: Encoding, layer: int, state: object, scale: float
) -> Tensor:
    """Apply every hook, in blocks of queries; a block's scores are float32 once their product is made."""
    hooks = encoding.hooks
    keys, queries = k.shape[2], q.shape[2]
    masked = Masked(encoding, pos, layer, queries)
    if hooks.isdisjoint({"scores", "weights", "values"}):
        # a mask alone is exact in any dtype; a bias is not
        dtype = torch.promote_types(v.dtype, torch.float32) if masked.has_bias else v.dtype
        blocks, learned = _blocks(q, keys, dtype), masked.learned
        return softmax_attention(q, k, v, blocks, lambda b: masked.additive(*b).to(dtype), scale, learned)
    outputs = []
    for start, stop, held in _blocks(q, keys, torch.float32):
        seen = keys - queries + stop  # keys up to the block's last query
        q_block, k_held, v_held = part(q, start, stop), part(k, 0, held), part(v, 0, held)
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


def _blocks(q: Tensor, keys: int, dtype: torch.dtype) -> list[Block]:
    """Cut queries q (B, H, T, D) with scores in `dtype` into blocks of few sizes, the last one first.

    That one sees the most keys, so the memory it frees serves all others. From the first block on, every one
    would need a little more than was freed: 760 MB instead of 500 at 4096 keys (bf16, glibc).
    """
    batch, heads, queries, _ = q.shape
    most = (MAX_SCORES_GPU if q.is_cuda else MAX_SCORES) * max(1, 4 // dtype.itemsize)
    block = max(1, min(queries, most // (batch * heads * keys)))
    step = block * -(-queries // (block * SHAPES))
    stops = [(start, min(start + block, queries)) for start in range(0, queries, block)]
    return [Block(a, b, keys - queries + min(queries, -(-b // step) * step)) for a, b in reversed(stops)]


def part(x: Tensor, start: int, stop: int) -> Tensor:
    """Slice x (B, H, T, D) along T; x itself where that is all of it: the gradient of a slice is a copy."""
    return x if start == 0 and stop == x.shape[2] else x[:, :, start:stop]


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block], additive: Additive, scale: float, learned: bool
) -> Tensor:
    """Attend q (B, H, T, D) to k (B, H or 1, S, D), v (B, H, S, E) -> (B, H, T, E), in the dtype of v.

    Its backward pass is written out: autograd makes zeros as large as k and v for the slices of each block,
    and adds these up, a third of the measured time with four blocks of 512 keys.

    `blocks` cover every query once; the first meets all keys that any of them meets. Scores have the dtype of
    `additive`: float32 for a bias; a mask alone may have v's, in which it is exact. `learned` says
    that `additive` has gradients. The backward pass keeps the softmax in v's dtype alone.
    """
    q, k = q.to(v.dtype), k.to(v.dtype).expand(-1, q.shape[1], -1, -1)
    if torch.compiler.is_compiling():
        outputs = []
        for start, stop, keys in sorted(blocks):
            bias = additive(Block(start, stop, keys))
            s = (q[:, :, start:stop] @ k[:, :, :keys].transpose(-1, -2)).to(bias.dtype) * scale + bias
            outputs.append(torch.softmax(s, dim=-1).to(v.dtype) @ v[:, :, :keys])
        return torch.cat(outputs, dim=2)
    known = [additive(block) for block in blocks] if learned and torch.is_grad_enabled() else []
    return _SoftmaxAttention.apply(q, k, v, blocks, additive, scale, *known)


def _softmax(q: Tensor, k: Tensor, additive: Tensor, scale: float, batch: int) -> Tensor:
    """Return the weights of q (B * H, T, D), k (B * H, S, D): (B * H, T, S) in their dtype."""
    k = k.transpose(1, 2)
    if additive.dtype == q.dtype:  # one product with everything in it, rounded once
        everywhere = additive if len(additive) == 1 else additive.repeat(batch, 1, 1)
        s = torch.baddbmm(everywhere, q, k, alpha=scale)  # (B * H, T, S)
        return torch.softmax(s, dim=-1).to(q.dtype)  # a GPU's autocast makes it float32
    s = torch.bmm(q, k).to(additive.dtype).unflatten(0, (batch, -1))  # (B, H, T, S)
    s = torch.add(additive, s, alpha=scale, out=s)
    return torch.softmax(s, dim=-1).to(q.dtype).flatten(0, 1)


class _SoftmaxAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        blocks: Sequence[Block],
        additive: Additive,
        scale: float,
        *known: Tensor,
    ) -> Tensor:
        batch = q.shape[0]
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        weights: list[Tensor] = []  # of the softmax, (B * H, T block, keys), where a backward pass follows
        by_block = dict(zip(blocks, known, strict=True)).__getitem__ if known else additive
        y = v.new_empty(*q.shape[:2], v.shape[-1])  # (B * H, T, E)
        for block in blocks:
            start, stop, keys = block
            p = _softmax(q[:, start:stop], k[:, :keys], by_block(block), scale, batch)
            y[:, start:stop] = torch.bmm(p, v[:, :keys])
            if any(ctx.needs_input_grad):
                weights.append(p)
        ctx.save_for_backward(q, k, v, *weights)
        ctx.blocks, ctx.scale = blocks, scale
        ctx.heads = [len(one) for one in known]
        return y.unflatten(0, (batch, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *weights = ctx.saved_tensors
        batch, scale = grad.shape[0], ctx.scale
        grad = grad.flatten(0, 1)  # (B * H, T, E)
        d_q, d_k, d_v = torch.empty_like(q), torch.empty(0), torch.empty(0)
        unused = q.new_empty(())  # beta=0: not read
        d_additives: list[Tensor | None] = []
        for i, ((start, stop, keys), p) in enumerate(zip(ctx.blocks, weights, strict=True)):
            some, its_q = grad[:, start:stop], q[:, start:stop]
            d_p = torch.bmm(some, v[:, :keys].transpose(1, 2))  # (B * H, T block, keys)
            if ctx.heads and ctx.needs_input_grad[6 + i]:  # in float32, since it is summed over the batch
                wide = torch.promote_types(p.dtype, torch.float32)
                d_s = torch._softmax_backward_data(d_p.to(wide), p.to(wide), -1, wide)
                by_text = d_s.unflatten(0, (batch, -1))  # summed to (H or 1, T block, keys)
                d_additives.append(by_text.sum(0) if ctx.heads[i] > 1 else by_text.sum((0, 1))[None])
                d_s = d_s.to(p.dtype)
            else:
                d_s = torch._softmax_backward_data(d_p, p, -1, p.dtype)
                d_additives.append(None)
            d_q[:, start:stop] = torch.baddbmm(unused, d_s, k[:, :keys], beta=0, alpha=scale)
            its_d_k = torch.baddbmm(unused, d_s.transpose(1, 2), its_q, beta=0, alpha=scale)
            its_d_v = torch.bmm(p.transpose(1, 2), some)
            if i == 0:  # it meets all keys
                d_k, d_v = its_d_k, its_d_v
            else:
                d_k[:, :keys] += its_d_k
                d_v[:, :keys] += its_d_v
        found = (one.unflatten(0, (batch, -1)) for one in (d_q, d_k, d_v))
        return (*found, None, None, None, *d_additives[: len(ctx.heads)])
