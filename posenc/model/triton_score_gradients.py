"""Triton kernels for the sums of score_gradients.py, for NVIDIA GPUs.

The (T, T) square of queries and keys is cut into tiles. A program computes the gradients d s_ij of one tile
after the other, by two matrix products each, and adds them up in registers. In `_pair_kernel` a program has
one tile of the square, and sums over the batch. In `_gate_kernel` it has a column of tiles, one tile of keys
with all later queries, and sums over queries and over keys.

B batch, H heads, T tokens, D head width of queries and keys, E that of values. Arguments such as q_b, q_h and
q_t are strides of q by text, head and token; g_b, g_h and g_t are those of grad. The other arguments have the
names of score_gradients.py:
  grad        g, the gradient of the output y, (B, H, T, E)
  grad_dot_y  g_i . y_i, the sum of their products over E, (B, H, T)
  log_sum     the logarithm of the sum of exp(s_ij) over keys j, (B, H, T)
  high, low   two float32 parts of C, the cumulated gates: C_i = high_i + low_i, (B, H, T)
  factor      factor_i of the bias of gates, which is -factor_i (C_i - C_j), (B, H, T)
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 64  # queries of a tile
COLUMNS = 64  # keys of a tile
WARPS = 4
LEAST_DOT_WIDTH = 16  # `tl.dot` takes no narrower tensors


@triton.jit
def _load_rows(base, index, token_stride, length, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load rows `index` of the tensor (T, WIDTH) at `base`; beyond T and beyond WIDTH they are zero."""
    column = tl.arange(0, PADDED)
    is_inside = (index[:, None] < length) & (column[None, :] < WIDTH)
    return tl.load(base + index[:, None] * token_stride + column[None, :], mask=is_inside, other=0.0)


@triton.jit
def _score_gradient(q, k, v, grad, log_sum, grad_dot_y, bias, i, j, length, scale, PRECISION: tl.constexpr):
    """Return d s_ij of a tile of queries i and keys j, zero where j is in the future."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale + bias
    d_p = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    is_seen = (i[:, None] >= j[None, :]) & (i[:, None] < length)
    p = tl.where(is_seen, tl.exp(s - log_sum[:, None]), 0.0)
    return p * (d_p - grad_dot_y[:, None])


@triton.jit
def _pair_kernel(
    q, k, v, grad, log_sum, grad_dot_y, bias, out,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t,
    batch, heads, length, bias_width, scale,
    D: tl.constexpr, D_PADDED: tl.constexpr, E: tl.constexpr, E_PADDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_DISTANCE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum the gradient of a tile of scores of one head over the batch.

    out is (H, T, T) by i and j, or by i and i - j with BY_DISTANCE. bias is (H, T, T), or (H, R) by distance.
    bias_width is its last size.
    """
    first_row = tl.program_id(0) * ROWS
    first_column = tl.program_id(1) * COLUMNS
    # int64, since an index into (H, T, T) may be beyond 2^31.
    head = tl.program_id(2).to(tl.int64)
    if first_column > first_row + ROWS - 1:  # all keys of the tile are in the future
        return
    i = first_row + tl.arange(0, ROWS)
    j = first_column + tl.arange(0, COLUMNS)
    is_seen = (i[:, None] >= j[None, :]) & (i[:, None] < length)
    if BY_DISTANCE:  # the bias is (H, R)
        index_in_bias = head * bias_width + (i[:, None] - j[None, :])
    else:  # the bias is (H, T, T)
        index_in_bias = (head * length + i[:, None]) * bias_width + j[None, :]
    tile_of_bias = tl.load(bias + index_in_bias, mask=is_seen, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for b in range(batch):
        q_tile = _load_rows(q + b * q_b + head * q_h, i, q_t, length, D, D_PADDED)
        k_tile = _load_rows(k + b * k_b + head * k_h, j, k_t, length, D, D_PADDED)
        v_tile = _load_rows(v + b * v_b + head * v_h, j, v_t, length, E, E_PADDED)
        grad_tile = _load_rows(grad + b * g_b + head * g_h, i, g_t, length, E, E_PADDED)
        at_i = (b * heads + head) * length + i  # into (B, H, T)
        log_sum_tile = tl.load(log_sum + at_i, mask=i < length, other=0.0)
        grad_dot_y_tile = tl.load(grad_dot_y + at_i, mask=i < length, other=0.0)
        total += _score_gradient(
            q_tile, k_tile, v_tile, grad_tile, log_sum_tile, grad_dot_y_tile, tile_of_bias, i, j, length,
            scale, PRECISION,
        )  # fmt: skip
    if BY_DISTANCE:  # the last index is i - j: the caller sums over i
        index_in_out = (head * length + i[:, None]) * length + (i[:, None] - j[None, :])
    else:
        index_in_out = (head * length + i[:, None]) * length + j[None, :]
    tl.store(out + index_in_out, total, mask=is_seen)


@triton.jit
def _gate_kernel(
    q, k, v, grad, log_sum, grad_dot_y, high, low, factor, column_sums, row_sums, weighted_row_sums,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t,
    n_texts_and_heads, heads, length, scale,
    D: tl.constexpr, D_PADDED: tl.constexpr, E: tl.constexpr, E_PADDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WEIGHTED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of the scores of a tile of keys j of one head and text.

    column_sums        sum over queries i of factor_i d s_ij, (B, H, T)
    row_sums           sum over the keys j of this tile of d s_ij, (tiles, B, H, T)
    weighted_row_sums  sum over the keys j of this tile of -(C_i - C_j) d s_ij, (tiles, B, H, T)

    C_i is high_i + low_i. `weighted_row_sums` is written only with WEIGHTED.
    """
    tile = tl.program_id(0)
    first_column = tile * COLUMNS
    text_and_head = tl.program_id(1).to(tl.int64)
    b = text_and_head // heads
    head = text_and_head % heads
    j = first_column + tl.arange(0, COLUMNS)
    at_j = text_and_head * length + j  # into (B, H, T)
    k_tile = _load_rows(k + b * k_b + head * k_h, j, k_t, length, D, D_PADDED)
    v_tile = _load_rows(v + b * v_b + head * v_h, j, v_t, length, E, E_PADDED)
    high_j = tl.load(high + at_j, mask=j < length, other=0.0)
    low_j = tl.load(low + at_j, mask=j < length, other=0.0)
    column_sum = tl.zeros((COLUMNS,), dtype=tl.float32)
    # where the tile of queries that holds the first key begins
    first_row_that_sees = (first_column // ROWS) * ROWS
    for first_row in range(first_row_that_sees, length, ROWS):
        i = first_row + tl.arange(0, ROWS)
        at_i = text_and_head * length + i
        q_tile = _load_rows(q + b * q_b + head * q_h, i, q_t, length, D, D_PADDED)
        grad_tile = _load_rows(grad + b * g_b + head * g_h, i, g_t, length, E, E_PADDED)
        factor_i = tl.load(factor + at_i, mask=i < length, other=0.0)
        high_i = tl.load(high + at_i, mask=i < length, other=0.0)
        low_i = tl.load(low + at_i, mask=i < length, other=0.0)
        # C_i - C_j, by parts: for near tokens the difference of the high parts is exact.
        difference = (high_i[:, None] - high_j[None, :]) + (low_i[:, None] - low_j[None, :])
        bias = -factor_i[:, None] * difference
        log_sum_tile = tl.load(log_sum + at_i, mask=i < length, other=0.0)
        grad_dot_y_tile = tl.load(grad_dot_y + at_i, mask=i < length, other=0.0)
        d_s = _score_gradient(
            q_tile, k_tile, v_tile, grad_tile, log_sum_tile, grad_dot_y_tile, bias, i, j, length, scale,
            PRECISION,
        )  # fmt: skip
        column_sum += tl.sum(d_s * factor_i[:, None], axis=0)
        index_in_row_sums = tile.to(tl.int64) * n_texts_and_heads * length + at_i  # into (tiles, B, H, T)
        tl.store(row_sums + index_in_row_sums, tl.sum(d_s, axis=1), mask=i < length)
        if WEIGHTED:
            weighted_row_sum = -tl.sum(d_s * difference, axis=1)
            tl.store(weighted_row_sums + index_in_row_sums, weighted_row_sum, mask=i < length)
    tl.store(column_sums + at_j, column_sum, mask=j < length)


def pair_gradient(
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
    """Return d s_ij summed over the batch, (H, T, T) float32, zero for the future.

    With `by_distance` the last index is i - j, and the bias is (H, R). Otherwise the last index is j, and the
    bias is (H, T, T).
    """
    batch, heads, length, _ = q.shape
    # Zeros, since a program whose keys are all in the future returns without writing.
    out = torch.zeros(heads, length, length, device=q.device)
    tensors = _dense_rows(q, k, v, grad)
    bias = bias.contiguous()
    grid = (triton.cdiv(length, ROWS), triton.cdiv(length, COLUMNS), heads)
    _pair_kernel[grid](
        *tensors,
        log_sum.contiguous(),
        grad_dot_y.contiguous(),
        bias,
        out,
        *_strides(*tensors),
        batch,
        heads,
        length,
        bias.shape[-1],
        scale,
        **_constants(*tensors),
        BY_DISTANCE=by_distance,
        num_warps=WARPS,
    )
    return out


def gate_sums(
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
    """Return column_sums, row_sums and weighted_row_sums of `_gate_kernel`, (B, H, T) float32 each.

    The last two are summed over tiles. The third is 0 unless `is_weighted`.
    """
    batch, heads, length, _ = q.shape
    tiles = triton.cdiv(length, COLUMNS)
    column_sums = torch.empty(batch, heads, length, device=q.device)
    # Zeros, since queries before a tile of keys do not see it, and no program writes their sums.
    row_sums = torch.zeros(tiles, batch, heads, length, device=q.device)
    # A kernel needs some pointer; without WEIGHTED it does not write there.
    weighted_row_sums = torch.zeros_like(row_sums) if is_weighted else row_sums
    tensors = _dense_rows(q, k, v, grad)
    per_token = [tensor.contiguous() for tensor in (log_sum, grad_dot_y, high, low, factor)]
    _gate_kernel[(tiles, batch * heads)](
        *tensors,
        *per_token,
        column_sums,
        row_sums,
        weighted_row_sums,
        *_strides(*tensors),
        batch * heads,
        heads,
        length,
        scale,
        **_constants(*tensors),
        WEIGHTED=is_weighted,
        num_warps=WARPS,
    )
    weighted = weighted_row_sums.sum(0) if is_weighted else torch.zeros_like(column_sums)
    return column_sums, row_sums.sum(0), weighted


def _dense_rows(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors (B, H, T, ...) with the numbers of a token adjacent in memory, as kernels need."""
    return tuple(tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in tensors)


def _strides(*tensors: Tensor) -> list[int]:
    """Return the strides of batch, head and token of each tensor."""
    strides: list[int] = []
    for tensor in tensors:
        strides += tensor.stride()[:3]
    return strides


def _constants(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> dict[str, Any]:
    """Return the widths, the tile and the precision that a kernel is compiled for."""
    width = q.shape[-1]
    value_width = v.shape[-1]
    return {
        "D": width,
        "D_PADDED": max(LEAST_DOT_WIDTH, triton.next_power_of_2(width)),
        "E": value_width,
        "E_PADDED": max(LEAST_DOT_WIDTH, triton.next_power_of_2(value_width)),
        "ROWS": ROWS,
        "COLUMNS": COLUMNS,
        # It matters for float32 alone, whose numbers `tf32` would round to 10 bits.
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
    }
