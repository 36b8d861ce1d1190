"""Softmax attention in blocks of queries, with its backward pass written out.

A step of nano takes 0.98 to 1.10 times as long with the plain formula at T = 64 and 1.04 to 1.42 times at
T = 512, most with a fixed bias in bf16 (scripts/bench/backward_passes.py).

B batch, T queries (the last T of the S keys' tokens), S keys, H heads, D head width, E that of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


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

    Its backward pass is written out: autograd makes zeros as large as k and v for the slices of each block,
    and adds these up, a third of the measured time with four blocks of 512 keys.

    `blocks` cover every query once; the first meets all keys that any of them meets. Scores have the dtype of
    `additive`: float32 for a bias; a mask alone may have v's, in which it is exact. `learned` says
    that `additive` has gradients. The backward pass keeps the softmax in v's dtype alone.
    """
    q = q.to(v.dtype)
    k = k.to(v.dtype).expand(-1, q.shape[1], -1, -1)
    if torch.compiler.is_compiling():
        return _plain(q, k, v, blocks, additive, scale)
    with_gradients = [additive(block) for block in blocks] if learned and torch.is_grad_enabled() else []
    return _SoftmaxAttention.apply(q, k, v, blocks, additive, scale, *with_gradients)


def _plain(
    q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[Block], additive: Additive, scale: float
) -> Tensor:
    """Attend by the formula, for a compiler, which differentiates it itself."""
    outputs: list[Tensor] = []
    for block in sorted(blocks):
        bias = additive(block)
        product = q[:, :, block.start : block.stop] @ k[:, :, : block.keys].transpose(-1, -2)
        p = torch.softmax(product.to(bias.dtype) * scale + bias, dim=-1).to(v.dtype)
        outputs.append(p @ v[:, :, : block.keys])
    return torch.cat(outputs, dim=2)


def _softmax(q: Tensor, k: Tensor, additive: Tensor, scale: float, batch: int) -> Tensor:
    """Return the weights of q (B * H, T, D), k (B * H, S, D): (B * H, T, S) in their dtype."""
    k = k.transpose(1, 2)
    if additive.dtype == q.dtype:  # one product with everything in it, rounded once
        for_each = additive if len(additive) == 1 else additive.repeat(batch, 1, 1)
        s = torch.baddbmm(for_each, q, k, alpha=scale)  # (B * H, T, S)
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
        *with_gradients: Tensor,
    ) -> Tensor:
        batch = q.shape[0]
        q, k, v = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        weights: list[Tensor] = []  # of the softmax, (B * H, T block, keys), where a backward pass follows
        bias_of = additive
        if with_gradients:
            bias_of = dict(zip(blocks, with_gradients, strict=True)).__getitem__
        y = v.new_empty(*q.shape[:2], v.shape[-1])  # (B * H, T, E)
        for block in blocks:
            start, stop, keys = block
            p = _softmax(q[:, start:stop], k[:, :keys], bias_of(block), scale, batch)
            y[:, start:stop] = torch.bmm(p, v[:, :keys])
            if any(ctx.needs_input_grad):
                weights.append(p)
        ctx.save_for_backward(q, k, v, *weights)
        ctx.blocks = blocks
        ctx.scale = scale
        ctx.bias_heads = [len(bias) for bias in with_gradients]
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
            grad_block, q_block = grad[:, start:stop], q[:, start:stop]
            d_p = torch.bmm(grad_block, v[:, :keys].transpose(1, 2))  # (B * H, T block, keys)
            if ctx.bias_heads and ctx.needs_input_grad[6 + i]:
                # in float32, since it is summed over the batch
                wide = torch.promote_types(p.dtype, torch.float32)
                d_s = torch._softmax_backward_data(d_p.to(wide), p.to(wide), -1, wide)
                d_additives.append(_summed_over_batch(d_s, batch, ctx.bias_heads[i]))
                d_s = d_s.to(p.dtype)
            else:
                d_s = torch._softmax_backward_data(d_p, p, -1, p.dtype)
                d_additives.append(None)
            d_q[:, start:stop] = torch.baddbmm(unused, d_s, k[:, :keys], beta=0, alpha=scale)
            d_k_block = torch.baddbmm(unused, d_s.transpose(1, 2), q_block, beta=0, alpha=scale)
            d_v_block = torch.bmm(p.transpose(1, 2), grad_block)
            if i == 0:  # it meets all keys
                d_k, d_v = d_k_block, d_v_block
            else:
                d_k[:, :keys] += d_k_block
                d_v[:, :keys] += d_v_block
        d_heads = [gradient.unflatten(0, (batch, -1)) for gradient in (d_q, d_k, d_v)]
        return (*d_heads, None, None, None, *d_additives[: len(ctx.bias_heads)])


def _summed_over_batch(d_s: Tensor, batch: int, heads: int) -> Tensor:
    """Sum gradients (B * H, T block, keys) to those of a bias: (H or 1, T block, keys)."""
    by_text = d_s.unflatten(0, (batch, -1))
    if heads > 1:
        return by_text.sum(0)
    return by_text.sum((0, 1))[None]
