"""Softmax attention in blocks of queries, with its backward pass written out.

With the plain formula (`_plain`) and autograd a training step of the model `nano` takes up to 1.10 times as
long at T = 64, and up to 1.42 times at T = 512. The slowest case is a fixed bias in bf16
(scripts/bench/backward_passes.py).

B batch, H heads, S keys, T queries (those of the last T tokens), Tb queries of a block, D head width of
queries and keys, E head width of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class QueryBlock(NamedTuple):
    """A range of queries, and the number of keys that their scores are computed for.

    The queries are `start` to `stop` - 1, and the keys are the first ones of the window. No query of the
    block may see a later key.
    """

    start: int
    stop: int
    keys: int


# Return the bias of a block, and -inf where a key may not be seen: (H or 1, Tb, keys).
BiasOfBlock = Callable[[QueryBlock], Tensor]


class Scoring(NamedTuple):
    """What scores are made of: scale * q . k + bias, and the sink."""

    scale: float
    bias_of: BiasOfBlock
    bias_has_gradient: bool
    sink: Tensor | None = None  # the score of one more key, which has no value: (H,) float32


# Indices among the arguments of `_SoftmaxAttention.apply`, for `ctx.needs_input_grad`.
SINK_ARGUMENT = 5
FIRST_BIAS_ARGUMENT = 6


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Sequence[QueryBlock],
    scoring: Scoring,
) -> Tensor:
    """Attend q (B, H, T, D) to k (B, H or 1, S, D), v (B, H, S, E) -> (B, H, T, E), in the dtype of v.

    Every query is in one block, and the first block must see the most keys.

    Scores have the dtype of the bias. A bias is float32. If there is only a mask, it may have the dtype of v,
    since 0 and -inf are exact in any dtype. With a sink it must be float32. For the backward pass the weights
    are kept only in the dtype of v.

    The backward pass is written out. For the gradient of each slice k[:, :, :keys] autograd would make a
    tensor of the size of k, zero outside of the slice, and add these tensors up; the same for v. With four
    blocks over 512 keys that was a third of the time.
    """
    q = q.to(v.dtype)
    k = k.to(v.dtype).expand(-1, q.shape[1], -1, -1)
    if torch.compiler.is_compiling():
        return _plain(q, k, v, blocks, scoring)
    # Autograd sees only tensors that are arguments of `apply`. So learned biases and the sink are passed as
    # such, although `scoring` has both.
    learned_biases: list[Tensor] = []
    if scoring.bias_has_gradient and torch.is_grad_enabled():
        learned_biases = [scoring.bias_of(block) for block in blocks]
    return _SoftmaxAttention.apply(q, k, v, blocks, scoring, scoring.sink, *learned_biases)


def _plain(q: Tensor, k: Tensor, v: Tensor, blocks: Sequence[QueryBlock], scoring: Scoring) -> Tensor:
    """Attend by the formula, for a compiler, which differentiates it itself."""
    outputs: list[Tensor] = []
    for block in sorted(blocks):  # by `start`, since `cat` joins their outputs below
        bias = scoring.bias_of(block)
        product = q[:, :, block.start : block.stop] @ k[:, :, : block.keys].transpose(-1, -2)
        s = product.to(bias.dtype) * scoring.scale + bias
        p = torch.softmax(s, dim=-1)
        if scoring.sink is not None:
            # softmax over keys and sink = softmax over keys * sigmoid(logsumexp - sink)
            p = p * torch.sigmoid(torch.logsumexp(s, dim=-1, keepdim=True) - scoring.sink[:, None, None])
        outputs.append(p.to(v.dtype) @ v[:, :, : block.keys])
    return torch.cat(outputs, dim=2)


def _softmax(q: Tensor, k: Tensor, bias: Tensor, scale: float, batch: int) -> Tensor:
    """Return the weights of q (B * H, T, D), k (B * H, S, D): (B * H, T, S) in their dtype."""
    k_transposed = k.transpose(1, 2)  # (B * H, D, S)
    # If the bias has the dtype of q, as a mere mask has, one call makes the scores and rounds them once.
    # Otherwise the products are cast to the dtype of the bias first.
    if bias.dtype == q.dtype:
        bias_of_heads = bias if len(bias) == 1 else bias.repeat(batch, 1, 1)  # (B * H or 1, T, S)
        s = torch.baddbmm(bias_of_heads, q, k_transposed, alpha=scale)  # (B * H, T, S)
        return torch.softmax(s, dim=-1).to(q.dtype)  # a GPU's softmax is float32 under autocast
    s = torch.bmm(q, k_transposed).to(bias.dtype).unflatten(0, (batch, -1))  # (B, H, T, S)
    s = torch.add(bias, s, alpha=scale, out=s)  # bias + scale * s, in place
    return torch.softmax(s, dim=-1).to(q.dtype).flatten(0, 1)


def _softmax_with_sink(
    q: Tensor, k: Tensor, bias: Tensor, scale: float, batch: int, sink: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the weights of the keys as `_softmax` does, and that of the sink (B, H, T, 1) as float32."""
    s = torch.bmm(q, k.transpose(1, 2)).to(bias.dtype).unflatten(0, (batch, -1))  # (B, H, T, S)
    s = torch.add(bias, s, alpha=scale, out=s)
    p = torch.softmax(s, dim=-1)
    # max p = exp(max s - log_sum), so log_sum = max s - log(max p). The largest weight of a row is at least
    # 1/S, so its logarithm is finite.
    log_sum = s.amax(-1, keepdim=True) - p.amax(-1, keepdim=True).log()  # (B, H, T, 1)
    above_sink = log_sum - sink[:, None, None]
    weights = p.mul_(torch.sigmoid(above_sink))
    return weights.to(q.dtype).flatten(0, 1), torch.sigmoid(-above_sink)


class _SoftmaxAttention(torch.autograd.Function):
    """Attend block by block; the backward pass reads the weights that the forward pass kept."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        blocks: Sequence[QueryBlock],
        scoring: Scoring,
        sink: Tensor | None,
        *learned_biases: Tensor,
    ) -> Tensor:
        batch = q.shape[0]
        scale = scoring.scale
        q = q.flatten(0, 1)  # (B * H, T, D)
        k = k.flatten(0, 1)  # (B * H, S, D)
        v = v.flatten(0, 1)  # (B * H, S, E)
        needs_backward = any(ctx.needs_input_grad)
        weights: list[Tensor] = []  # of each block, (B * H, Tb, keys)
        weights_of_sink: list[Tensor] = []  # of each block, (B, H, Tb, 1)
        y = v.new_empty(*q.shape[:2], v.shape[-1])  # (B * H, T, E)
        for number, block in enumerate(blocks):
            start, stop, keys = block
            bias = learned_biases[number] if learned_biases else scoring.bias_of(block)
            if sink is None:
                p = _softmax(q[:, start:stop], k[:, :keys], bias, scale, batch)
            else:
                p, of_sink = _softmax_with_sink(q[:, start:stop], k[:, :keys], bias, scale, batch, sink)
                weights_of_sink.append(of_sink)
            y[:, start:stop] = torch.bmm(p, v[:, :keys])
            # An evaluation keeps no weights, so it has those of one block at a time in memory.
            if needs_backward:
                weights.append(p)
        sink_needs_gradient = ctx.needs_input_grad[SINK_ARGUMENT]
        for_sink = [y, *weights_of_sink] if sink_needs_gradient else []
        # q, k, v, and the weights of each block. For a learned sink also y and, of each block, its weights.
        ctx.save_for_backward(q, k, v, *weights, *for_sink)
        ctx.blocks = blocks
        ctx.scale = scale
        ctx.bias_heads = [len(bias) for bias in learned_biases]
        return y.unflatten(0, (batch, -1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *saved = ctx.saved_tensors
        n_blocks = len(ctx.blocks)
        weights = saved[:n_blocks]
        for_sink = saved[n_blocks:]  # empty if no sink is learned
        batch = grad.shape[0]
        grad = grad.flatten(0, 1)  # (B * H, T, E)
        bias_needs_gradient = ctx.needs_input_grad[FIRST_BIAS_ARGUMENT:]  # by block; empty if none is learned
        d_biases: list[Tensor | None] = [None] * len(bias_needs_gradient)
        d_q = torch.empty_like(q)
        for number, (start, stop, keys) in enumerate(ctx.blocks):
            p = weights[number]  # (B * H, Tb, keys)
            grad_block = grad[:, start:stop]
            d_p = torch.bmm(grad_block, v[:, :keys].transpose(1, 2))  # (B * H, Tb, keys)
            # Both branches compute d_s = p * (d_p - sum over keys of p * d_p). It holds with a sink too,
            # which would add p_sink * 0 to the sum, since its value is zero.
            if bias_needs_gradient and bias_needs_gradient[number]:
                # in float32, since it is summed over the batch
                wide = torch.promote_types(p.dtype, torch.float32)
                d_s = torch._softmax_backward_data(d_p.to(wide), p.to(wide), -1, wide)
                d_biases[number] = _summed_over_batch(d_s, batch, ctx.bias_heads[number])
                d_s = d_s.to(p.dtype)
            else:
                d_s = torch._softmax_backward_data(d_p, p, -1, p.dtype)
            d_q[:, start:stop] = _scaled_product(d_s, k[:, :keys], ctx.scale)
            d_k_block = _scaled_product(d_s.transpose(1, 2), q[:, start:stop], ctx.scale)  # (B * H, keys, D)
            d_v_block = torch.bmm(p.transpose(1, 2), grad_block)  # (B * H, keys, E)
            if number == 0:  # the first block meets all keys, so these have the size of k and v
                d_k = d_k_block
                d_v = d_v_block
            else:
                d_k[:, :keys] += d_k_block
                d_v[:, :keys] += d_v_block
        d_sink = _sink_gradient(grad, for_sink, ctx.blocks, batch) if for_sink else None
        d_heads = [gradient.unflatten(0, (batch, -1)) for gradient in (d_q, d_k, d_v)]
        return (*d_heads, None, None, d_sink, *d_biases)  # blocks and scoring have no gradient


def _sink_gradient(
    grad: Tensor, for_sink: Sequence[Tensor], blocks: Sequence[QueryBlock], batch: int
) -> Tensor:
    """Return the gradient of the sinks (H,): minus the sum of p_sink * (g . y) over batch and queries.

    The derivative of y by the sink's score is -p_sink y: raising the score by a small e multiplies the weight
    of every key, and so y, by 1 - e p_sink.

    `for_sink` holds y (B * H, T, E), then the weights of the sink in each block.
    """
    y, *weights_of_sink = for_sink
    wide = weights_of_sink[0].dtype
    dot = (grad.to(wide) * y.to(wide)).sum(-1).unflatten(0, (batch, -1))  # (B, H, T)
    d_sink = torch.zeros(dot.shape[1], dtype=wide, device=dot.device)
    for block, of_sink in zip(blocks, weights_of_sink, strict=True):
        d_sink -= (of_sink[..., 0] * dot[..., block.start : block.stop]).sum((0, 2))
    return d_sink


def _scaled_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """Return scale * a @ b, rounded once."""
    ignored = a.new_empty(())  # baddbmm needs a summand; beta = 0 drops it
    return torch.baddbmm(ignored, a, b, beta=0, alpha=scale)


def _summed_over_batch(d_s: Tensor, batch: int, heads: int) -> Tensor:
    """Sum gradients (B * H, Tb, keys) to those of a bias: (H or 1, Tb, keys)."""
    by_text = d_s.unflatten(0, (batch, -1))
    if heads > 1:
        return by_text.sum(0)
    return by_text.sum((0, 1))[None]
