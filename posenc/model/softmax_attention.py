"""Compute softmax(scale * q k^T + additive) v in blocks of queries, with its backward pass written out.

Autograd makes zeros as large as k and v for every block's slice of them, and adds these up: with four blocks
of 512 keys that was a third of the measured time. B batch, H heads, T queries, S keys, D and E head widths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from posenc.model.fused import is_plain


class Block(NamedTuple):
    """Queries from `start` to `stop`, and the number of keys, from the first on, that they meet."""

    start: int
    stop: int
    keys: int


Additive = Callable[[Block], Tensor]  # bias, and -inf where a key may not be seen: (H or 1, T block, keys)


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block], additive: Additive, scale: float, learned: bool
) -> Tensor:
    """Attend q (B, H, T, D) to k (B, H or 1, S, D), v (B, H, S, E) -> (B, H, T, E), in the dtype of v.

    `blocks` cover every query once; the first meets all keys that any of them meets. Scores have the dtype of
    `additive`: float32 for a bias; a mask alone may have v's, in which it is exact. `learned` says
    that `additive` has gradients. The backward pass keeps the softmax in v's dtype alone.
    """
    q, k = q.to(v.dtype), k.to(v.dtype).expand(-1, q.shape[1], -1, -1)
    if is_plain():
        outputs = []
        for start, stop, keys in sorted(blocks):
            bias = additive(Block(start, stop, keys))
            s = (q[:, :, start:stop] @ k[:, :, :keys].transpose(-1, -2)).to(bias.dtype) * scale + bias
            outputs.append(torch.softmax(s, dim=-1).to(v.dtype) @ v[:, :, :keys])
        return torch.cat(outputs, dim=2)
    if torch.is_grad_enabled():
        known = [additive(block) for block in blocks] if learned else []
        return _SoftmaxAttention.apply(q, k, v, blocks, additive, scale, *known)
    batch = q.shape[0]
    q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    return _forward(q, k, v, blocks, additive, scale, batch).unflatten(0, (batch, -1))


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Sequence[Block],
    additive: Additive,
    scale: float,
    batch: int,
    weights: list[Tensor] | None = None,
) -> Tensor:
    """Map q (B * H, T, D) to (B * H, T, E); `weights` collects the softmax (B * H, T block, keys)."""
    y = v.new_empty(*q.shape[:2], v.shape[-1])
    for start, stop, keys in blocks:
        p = _softmax(q[:, start:stop], k[:, :keys], additive(Block(start, stop, keys)), scale, batch)
        y[:, start:stop] = torch.bmm(p, v[:, :keys])
        if weights is not None:
            weights.append(p)
    return y


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
        weights: list[Tensor] = []
        by_block = dict(zip(blocks, known, strict=True)).__getitem__ if known else additive
        y = _forward(q, k, v, blocks, by_block, scale, batch, weights)
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
