"""Triton kernels for the sums of score_gradients.py, for NVIDIA GPUs.

The (T, T) square of queries and keys is cut into tiles. A program computes the gradients d s_ij of one tile
after the other, by two matrix products each, and adds them up in registers. In `_pair_kernel` a program has
one tile of the square, and sums over the batch. In `_gate_kernel` it has a column of tiles, one tile of keys
with all later queries, and sums over queries and over keys.

B batch, H heads, T tokens, D head width of queries and keys, E that of values. Arguments such as q_b, q_h and
q_t are strides of q by text, head and token.
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
LEAST_PRODUCT = 16  # least width of a tensor in Triton's products


@triton.jit
def _load_rows(base, index, token_stride, length, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Load rows `index` of the tensor (T, WIDTH) at `base`; beyond T and beyond WIDTH they are zero."""
    column = tl.arange(0, PADDED)
    is_inside = (index[:, None] < length) & (column[None, :] < WIDTH)
    return tl.load(base + index[:, None] * token_stride + column[None, :], mask=is_inside, other=0.0)


@triton.jit
def _score_gradient(q, k, v, grad, log_sum, dot, bias, i, j, length, scale, PRECISION: tl.constexpr):
    """Return d s_ij of a tile of queries i and keys j, zero where j is in the future."""
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale + bias
    d_p = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
    is_seen = (i[:, None] >= j[None, :]) & (i[:, None] < length)
    p = tl.where(is_seen, tl.exp(s - log_sum[:, None]), 0.0)
    return p * (d_p - dot[:, None])


@triton.jit
def _pair_kernel(
    q, k, v, grad, log_sum, dot, bias, out,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t,
    batch, heads, length, bias_width, scale,
    D: tl.constexpr, D_PADDED: tl.constexpr, E: tl.constexpr, E_PADDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BY_DISTANCE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum the gradient of a tile of scores of one head over the batch."""
    first_row = tl.program_id(0) * ROWS
    first_column = tl.program_id(1) * COLUMNS
    head = tl.program_id(2).to(tl.int64)
    if first_column > first_row + ROWS - 1:
        return
    i = first_row + tl.arange(0, ROWS)
    j = first_column + tl.arange(0, COLUMNS)
    is_past = (i[:, None] >= j[None, :]) & (i[:, None] < length)
    if BY_DISTANCE:
        index_in_bias = head * bias_width + (i[:, None] - j[None, :])
    else:
        index_in_bias = (head * length + i[:, None]) * bias_width + j[None, :]
    tile_of_bias = tl.load(bias + index_in_bias, mask=is_past, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for b in range(batch):
        q_tile = _load_rows(q + b * q_b + head * q_h, i, q_t, length, D, D_PADDED)
        k_tile = _load_rows(k + b * k_b + head * k_h, j, k_t, length, D, D_PADDED)
        v_tile = _load_rows(v + b * v_b + head * v_h, j, v_t, length, E, E_PADDED)
        grad_tile = _load_rows(grad + b * g_b + head * g_h, i, g_t, length, E, E_PADDED)
        row = (b * heads + head) * length + i
        log_sum_tile = tl.load(log_sum + row, mask=i < length, other=0.0)
        dot_tile = tl.load(dot + row, mask=i < length, other=0.0)
        total += _score_gradient(
            q_tile, k_tile, v_tile, grad_tile, log_sum_tile, dot_tile, tile_of_bias, i, j, length, scale,
            PRECISION,
        )  # fmt: skip
    if BY_DISTANCE:  # row i holds its keys by distance, so that the caller's sum over rows is one by distance
        index_in_out = (head * length + i[:, None]) * length + (i[:, None] - j[None, :])
    else:
        index_in_out = (head * length + i[:, None]) * length + j[None, :]
    tl.store(out + index_in_out, total, mask=is_past)


@triton.jit
def _gate_kernel(
    q, k, v, grad, log_sum, dot, high, low, factor, columns, rows, weighted_rows,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t,
    texts_and_heads, heads, length, scale,
    D: tl.constexpr, D_PADDED: tl.constexpr, E: tl.constexpr, E_PADDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WEIGHTED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of the scores of a tile of keys j of one head and text.

    columns        sum over queries i of g_i d s_ij, (B, H, T)
    rows           sum over the keys j of this tile of d s_ij, (tiles, B, H, T)
    weighted_rows  sum over the keys j of this tile of -(C_i - C_j) d s_ij, (tiles, B, H, T)
    """
    tile = tl.program_id(0)
    first_column = tile * COLUMNS
    text_and_head = tl.program_id(1).to(tl.int64)
    b = text_and_head // heads
    head = text_and_head % heads
    j = first_column + tl.arange(0, COLUMNS)
    at_j = text_and_head * length + j
    k_tile = _load_rows(k + b * k_b + head * k_h, j, k_t, length, D, D_PADDED)
    v_tile = _load_rows(v + b * v_b + head * v_h, j, v_t, length, E, E_PADDED)
    high_j = tl.load(high + at_j, mask=j < length, other=0.0)
    low_j = tl.load(low + at_j, mask=j < length, other=0.0)
    column_sum = tl.zeros((COLUMNS,), dtype=tl.float32)
    for first_row in range((first_column // ROWS) * ROWS, length, ROWS):
        i = first_row + tl.arange(0, ROWS)
        at_i = text_and_head * length + i
        q_tile = _load_rows(q + b * q_b + head * q_h, i, q_t, length, D, D_PADDED)
        grad_tile = _load_rows(grad + b * g_b + head * g_h, i, g_t, length, E, E_PADDED)
        factor_i = tl.load(factor + at_i, mask=i < length, other=0.0)
        high_i = tl.load(high + at_i, mask=i < length, other=0.0)
        low_i = tl.load(low + at_i, mask=i < length, other=0.0)
        difference = (high_i[:, None] - high_j[None, :]) + (low_i[:, None] - low_j[None, :])
        bias = -factor_i[:, None] * difference
        log_sum_tile = tl.load(log_sum + at_i, mask=i < length, other=0.0)
        dot_tile = tl.load(dot + at_i, mask=i < length, other=0.0)
        d_s = _score_gradient(
            q_tile, k_tile, v_tile, grad_tile, log_sum_tile, dot_tile, bias, i, j, length, scale, PRECISION
        )
        column_sum += tl.sum(d_s * factor_i[:, None], axis=0)
        index_in_rows = tile.to(tl.int64) * texts_and_heads * length + at_i
        tl.store(rows + index_in_rows, tl.sum(d_s, axis=1), mask=i < length)
        if WEIGHTED:
            tl.store(weighted_rows + index_in_rows, -tl.sum(d_s * difference, axis=1), mask=i < length)
    tl.store(columns + at_j, column_sum, mask=j < length)


def pair_gradient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    grad: Tensor,
    log_sum: Tensor,
    dot: Tensor,
    bias: Tensor,
    scale: float,
    by_distance: bool,
) -> Tensor:
    """Return d s_ij summed over the batch, (H, T, T) float32, zero for the future.

    With `by_distance` the last index is i - j, and the bias is (H, R); without, it is j and (H, T, T).
    """
    batch, heads, length, _ = q.shape
    out = torch.zeros(heads, length, length, device=q.device)
    tensors = _dense_rows(q, k, v, grad)
    bias = bias.contiguous()
    grid = (triton.cdiv(length, ROWS), triton.cdiv(length, COLUMNS), heads)
    _pair_kernel[grid](
        *tensors,
        log_sum.contiguous(),
        dot.contiguous(),
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
    dot: Tensor,
    high: Tensor,
    low: Tensor,
    factor: Tensor,
    scale: float,
    is_weighted: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three sums of `gate_gradients`, (B, H, T) float32; the third is 0 unless `is_weighted`."""
    batch, heads, length, _ = q.shape
    tiles = triton.cdiv(length, COLUMNS)
    columns = torch.empty(batch, heads, length, device=q.device)
    # Zeros, since queries before a tile of keys do not see it, and no program writes their sums.
    rows = torch.zeros(tiles, batch, heads, length, device=q.device)
    weighted_rows = torch.zeros_like(rows) if is_weighted else rows
    tensors = _dense_rows(q, k, v, grad)
    numbers_of_tokens = [tensor.contiguous() for tensor in (log_sum, dot, high, low, factor)]
    _gate_kernel[(tiles, batch * heads)](
        *tensors,
        *numbers_of_tokens,
        columns,
        rows,
        weighted_rows,
        *_strides(*tensors),
        batch * heads,
        heads,
        length,
        scale,
        **_constants(*tensors),
        WEIGHTED=is_weighted,
        num_warps=WARPS,
    )
    weighted = weighted_rows.sum(0) if is_weighted else torch.zeros_like(columns)
    return columns, rows.sum(0), weighted


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
        "D_PADDED": max(LEAST_PRODUCT, triton.next_power_of_2(width)),
        "E": value_width,
        "E_PADDED": max(LEAST_PRODUCT, triton.next_power_of_2(value_width)),
        "ROWS": ROWS,
        "COLUMNS": COLUMNS,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
    }
