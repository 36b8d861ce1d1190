"""Gradients of biases and gates of causal attention, for FlexAttention.

The scores are s_ij = scale q_i . k_j + b_ij, their softmax is p, the output is y, and g is its gradient. Then
the gradient of a score is
  d s_ij = p_ij (g_i . v_j - g_i . y_i)
The gradient of a bias is d s_ij, summed over the batch. Those of cumulated gates (`Gates`) are sums of d s_ij
over queries or keys. On a GPU they are summed without a (B, H, T, T) tensor in memory.

FlexAttention itself adds such gradients up by atomic operations, most of them at the same few addresses. With
that, a training step of T5 took 5.2 times as long as one of RoPE, and two equal runs did not end with equal
weights. Here each sum is made by one program in one order.

B batch, H heads, T tokens, D head width of queries and keys, E that of values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Attended(NamedTuple):
    """The inputs and the output of a causal attention, for its backward pass."""

    q: Tensor  # (B, H, T, D)
    k: Tensor  # (B, H, T, D)
    v: Tensor  # (B, H, T, E)
    y: Tensor  # (B, H, T, E), the output
    log_sum: Tensor  # (B, H, T) float32: the logarithm of the sum of exp(s_ij) over keys j


class Gates(NamedTuple):
    """Cumulated gates: the bias of query i and key j is -g_i (C_i - C_j).

    C_i is the sum of the gates of tokens 0 to i, and g_i a weight of the query.
    """

    sums: Tensor  # C, (B, H, T) float64
    weight: Tensor | None  # g, (B, H, T); None stands for 1

    def split_sums(self) -> tuple[Tensor, Tensor]:
        """Return two float32 tensors whose sum is C to about 48 bits, without gradients."""
        sums = self.sums.detach()
        high = sums.float()
        low = (sums - high.double()).float()
        return high, low


def with_bias_gradient(attended: Attended, bias: Tensor, scale: float, *, by_distance: bool) -> Tensor:
    """Return the attention's output (B, H, T, E) unchanged; its backward pass gives `bias` its gradient.

    Compute the attention with `bias.detach()`, or the bias gets its gradient twice.
    bias   (H, T, T): [h, i, j] for query i and key j
           with `by_distance` (H, R), R >= T: [h, r] for the distance r = i - j
    """
    output: Tensor = _BiasGradient.apply(
        attended.y, bias, attended.q, attended.k, attended.v, attended.log_sum, scale, by_distance
    )
    return output


def with_gate_gradient(attended: Attended, gates: Gates, scale: float) -> Tensor:
    """Return the attention's output (B, H, T, E) unchanged; its backward pass gives `gates` their gradients.

    Compute the attention with detached gates, or they get their gradients twice.
    """
    output: Tensor = _GateGradient.apply(
        attended.y, gates.sums, gates.weight, attended.q, attended.k, attended.v, attended.log_sum, scale
    )
    return output


class _BiasGradient(torch.autograd.Function):
    """Return y as it is; in the backward pass also compute the gradient of the bias."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        bias: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_sum: Tensor,
        scale: float,
        by_distance: bool,
    ) -> Tensor:
        ctx.save_for_backward(y, bias, q, k, v, log_sum)
        ctx.scale = scale
        ctx.by_distance = by_distance
        return y.view_as(y)  # autograd wants a new tensor, even if it is a view

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, bias, q, k, v, log_sum = ctx.saved_tensors
        grad_dot_y = _row_dot(grad, y)
        d_bias = bias_gradient(q, k, v, grad, log_sum, grad_dot_y, bias, ctx.scale, ctx.by_distance)
        no_gradients = (None,) * 6  # of q, k, v, log_sum, scale and by_distance
        return grad, d_bias.to(bias.dtype), *no_gradients


class _GateGradient(torch.autograd.Function):
    """Return y as it is; in the backward pass also compute the gradients of the gates."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        sums: Tensor,
        weight: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        log_sum: Tensor,
        scale: float,
    ) -> Tensor:
        high, low = Gates(sums, weight).split_sums()
        ctx.save_for_backward(y, high, low, weight, q, k, v, log_sum)
        ctx.scale = scale
        ctx.sums_dtype = sums.dtype
        return y.view_as(y)  # autograd wants a new tensor, even if it is a view

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, high, low, weight, q, k, v, log_sum = ctx.saved_tensors
        grad_dot_y = _row_dot(grad, y)
        factor = torch.ones_like(high) if weight is None else weight.float().contiguous()
        is_weighted = weight is not None
        column_sums, row_sums, weighted_row_sums = gate_gradients(
            q, k, v, grad, log_sum, grad_dot_y, high, low, factor, ctx.scale, is_weighted
        )
        # C_t is in the bias -g_i C_i + g_i C_j twice: of a key it gets the gradient `column_sums`, of a query
        # -g_t `row_sums`. In exact numbers `row_sums` are zero, since softmax ignores what is added to a
        # whole row. They are subtracted all the same: in bf16 they have the same rounding errors as
        # `column_sums`, which cancel when the gradients are summed along the text. Otherwise they pile up.
        d_sums = (column_sums - factor * row_sums).to(ctx.sums_dtype)
        d_weight = None if weight is None else weighted_row_sums.to(weight.dtype)
        no_gradients = (None,) * 5  # of q, k, v, log_sum and scale
        return grad, d_sums, d_weight, *no_gradients


def _row_dot(grad: Tensor, y: Tensor) -> Tensor:
    """Return g_i . y_i, (B, H, T) float32 or wider."""
    wide = torch.promote_types(y.dtype, torch.float32)
    return (grad.to(wide) * y.to(wide)).sum(-1)


@torch.library.custom_op("posenc::bias_gradient", mutates_args=())
def bias_gradient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    log_sum: Tensor,
    grad_dot_y: Tensor,
    bias: Tensor,
    scale: float,
    by_distance: bool,
) -> Tensor:
    """Return the gradient of a bias that all texts share, in the shape of the bias, at least float32.

    The tensors are those of `with_bias_gradient`; `grad` is the gradient g of the output, (B, H, T, E), and
    `grad_dot_y` is g_i . y_i, (B, H, T).
    """
    if q.is_cuda:
        # Imported here, since torch for CPUs comes without Triton.
        from posenc.model.triton_score_gradients import pair_gradient

        # (H, T, T): [h, i, j] for query i and key j; with `by_distance` [h, i, r] for query i and distance r
        gradients = pair_gradient(q, k, v, grad, log_sum, grad_dot_y, bias, scale, by_distance)
        if not by_distance:
            return gradients
        d_table = gradients.new_zeros(bias.shape)
        d_table[:, : gradients.shape[-1]] = gradients.sum(1)
        return d_table
    # On other devices the formula is computed with (B, H, T, T) tensors.
    length = q.shape[2]
    distance = _distances(length, q.device)
    bias_of_pairs = bias[:, distance.clamp_min(0)] if by_distance else bias
    d_s = _score_gradient(q, k, v, grad, log_sum, grad_dot_y, bias_of_pairs, scale).sum(0)  # (H, T, T)
    if not by_distance:
        return d_s
    d_table = d_s.new_zeros(bias.shape)
    # Pairs of the future are counted as distance 0. Their gradient is 0.
    distance_of_pair = distance.clamp_min(0).flatten()
    return d_table.index_add_(1, distance_of_pair, d_s.flatten(1))


@bias_gradient.register_fake
def _bias_gradient_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    log_sum: Tensor,
    grad_dot_y: Tensor,
    bias: Tensor,
    *_: object,
) -> Tensor:
    """Tell the compiler the shape, dtype and layout of what `bias_gradient` returns."""
    return grad_dot_y.new_empty(bias.shape)  # in the dtype of `grad_dot_y`, which is float32 or wider


@torch.library.custom_op("posenc::gate_gradients", mutates_args=())
def gate_gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    log_sum: Tensor,
    grad_dot_y: Tensor,
    high: Tensor,
    low: Tensor,
    factor: Tensor,
    scale: float,
    is_weighted: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return three sums of the gradients of scores, (B, H, T) float32 each.

    column_sums        at j: sum over i of g_i d s_ij, the gradient of C_j as a key
    row_sums           at i: sum over j of d s_ij
    weighted_row_sums  at i: sum over j of -(C_i - C_j) d s_ij, the gradient of g_i, if `is_weighted`

    `high` + `low` are the sums C, `factor` is g, (B, H, T) float32 each.
    """
    if q.is_cuda:
        from posenc.model.triton_score_gradients import gate_sums

        return gate_sums(q, k, v, grad, log_sum, grad_dot_y, high, low, factor, scale, is_weighted)
    # C_i - C_j, by parts: for near tokens the difference of the high parts is exact.
    difference = (high[..., :, None] - high[..., None, :]) + (low[..., :, None] - low[..., None, :])
    bias = -factor[..., None] * difference  # (B, H, T, T)
    d_s = _score_gradient(q, k, v, grad, log_sum, grad_dot_y, bias, scale)  # (B, H, T, T)
    column_sums = (d_s * factor[..., None]).sum(-2)
    row_sums = d_s.sum(-1)
    weighted_row_sums = -(d_s * difference).sum(-1)
    # the fake version below promises contiguous tensors
    return column_sums.contiguous(), row_sums.contiguous(), weighted_row_sums.contiguous()


@gate_gradients.register_fake
def _gate_gradients_fake(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, log_sum: Tensor, grad_dot_y: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    """Tell the compiler the shape, dtype and layout of what `gate_gradients` returns."""
    shape = grad_dot_y.shape
    return grad_dot_y.new_empty(shape), grad_dot_y.new_empty(shape), grad_dot_y.new_empty(shape)


def _distances(length: int, device: torch.device) -> Tensor:
    """Return i - j of all pairs, (T, T)."""
    index = torch.arange(length, device=device)
    return index[:, None] - index


def _score_gradient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    log_sum: Tensor,
    grad_dot_y: Tensor,
    bias: Tensor,
    scale: float,
) -> Tensor:
    """Return d s_ij by the formula, (B, H, T, T); zero for the future."""
    wide = grad_dot_y.dtype
    s = (q @ k.transpose(-1, -2)).to(wide) * scale + bias
    p = (s - log_sum[..., None].to(wide)).exp()
    d_p = (grad @ v.transpose(-1, -2)).to(wide)
    d_s = p * (d_p - grad_dot_y[..., None])
    return d_s.masked_fill(_distances(q.shape[2], q.device) < 0, 0.0)
