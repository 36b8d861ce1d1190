"""The table's gradient in Triton: one program goes down a block diagonal of every text (see flex_table.py).

Tiles are L x L: queries m L .. m L + L - 1 by their index among the S keys, keys n L .. n L + L - 1. In the
block diagonal c = m - n entry (a, b) of every tile stands at the distance c L + a - b, so a program looks the
bias up once and sums whole tiles; the diagonals are summed at the end, by `diagonals`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from posenc.model.diagonals import joined, tile_sums
from posenc.model.flex_masks import Mask

# L, and warps a program. As Triton 3.6 compiles it for bf16 and widths of 64 (its report; not timed yet):
# 64 and 4 warps: 64 kB shared, 181 registers on sm_90; 32 kB, 255 and 16 bytes spilled on sm_80. 128 and 8
# warps would halve the reads of q, k, v and dout: 128 kB, 255 registers, 96 and 508 bytes spilled.
SIDE, WARPS = 64, 4
SHARED = 96 << 10  # bytes of shared memory that every GPU from compute capability 8.0 on gives a program
PROGRAMS = 1024  # at most, beyond one a block diagonal and head: some 8 a multiprocessor
MOST_PARTIAL = 64 << 20  # bytes of tiles written at once


@triton.jit
def _sum_tiles(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, table_ptr, first_ptr, past_ptr, sums_ptr,
    q_b, q_h, q_t, k_b, k_h, k_s, v_b, v_h, v_s, o_b, o_h, o_t,
    batch, queries, keys, from_c, scale,
    heads: tl.constexpr, d_width: tl.constexpr, e_width: tl.constexpr, d_block: tl.constexpr,
    e_block: tl.constexpr, runs: tl.constexpr, side: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    h, split, place = tl.program_id(0), tl.program_id(1), tl.program_id(2)  # the longest diagonals first
    splits, places = tl.num_programs(1), tl.num_programs(2)
    c = from_c + place
    a = tl.arange(0, side)
    d, e = tl.arange(0, d_block), tl.arange(0, e_block)

    r = c * side + a[:, None] - a[None, :]
    bias = tl.load(table_ptr + h * keys + r, mask=(r >= 0) & (r < keys), other=0.0)

    from_m = tl.maximum((keys - queries) // side, c)
    tiles = tl.cdiv(keys, side) - from_m
    share = tl.cdiv(batch * tiles, splits)
    start = split * share
    total = tl.zeros((side, side), dtype=tl.float32)
    for pair in range(start, tl.minimum(start + share, batch * tiles)):
        text = (pair // tiles).to(tl.int64)
        m = from_m + pair % tiles
        i, j = m * side + a, (m - c) * side + a
        t = i - (keys - queries)
        is_row, is_key = (t >= 0) & (i < keys), j < keys
        if runs == 0:
            seen = (i[:, None] >= j[None, :]) & is_row[:, None]  # causal: then j < keys as well
        else:
            seen = tl.zeros((side, side), dtype=tl.int1)
            for n in tl.static_range(runs):
                low = tl.load(first_ptr + n * queries + t, mask=is_row, other=0)
                high = tl.load(past_ptr + n * queries + t, mask=is_row, other=0)
                seen = seen | ((j[None, :] >= low[:, None]) & (j[None, :] < high[:, None]))
        q = tl.load(
            q_ptr + text * q_b + h * q_h + t[:, None] * q_t + d[None, :],
            mask=is_row[:, None] & (d < d_width)[None, :], other=0.0,
        )  # fmt: skip
        k = tl.load(
            k_ptr + text * k_b + h * k_h + j[None, :] * k_s + d[:, None],
            mask=is_key[None, :] & (d < d_width)[:, None], other=0.0,
        )  # fmt: skip
        dout = tl.load(
            dout_ptr + text * o_b + h * o_h + t[:, None] * o_t + e[None, :],
            mask=is_row[:, None] & (e < e_width)[None, :], other=0.0,
        )  # fmt: skip
        v = tl.load(
            v_ptr + text * v_b + h * v_h + j[None, :] * v_s + e[:, None],
            mask=is_key[None, :] & (e < e_width)[:, None], other=0.0,
        )  # fmt: skip
        row = (text * heads + h) * queries + t
        lse = tl.load(lse_ptr + row, mask=is_row, other=0.0)
        delta = tl.load(delta_ptr + row, mask=is_row, other=0.0)
        s = tl.dot(q, k, input_precision=precision) * scale + bias
        p = tl.where(seen, tl.exp(s - lse[:, None]), 0.0)
        total += p * (tl.dot(dout, v, input_precision=precision) - delta[:, None])
    at = ((h * places + place) * splits + split).to(tl.int64) * side * side
    tl.store(sums_ptr + at + a[:, None] * side + a[None, :], total)


def table_gradient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dout: Tensor,
    lse: Tensor,
    delta: Tensor,
    table: Tensor,
    mask: Mask,
    scale: float,
) -> Tensor:
    """Gradient of the table (H, S); as for `in_blocks`, q, dout (B, H, T, D or E), k, v (B, H, S, D or E)."""
    q, k, v, dout = (one if one.stride(-1) == 1 else one.contiguous() for one in (q, k, v, dout))
    lse, delta, table = lse.contiguous(), delta.contiguous(), table.contiguous()
    batch, heads, queries, d_width = q.shape
    keys, e_width = v.shape[2:]
    d_block, e_block = (max(16, triton.next_power_of_2(width)) for width in (d_width, e_width))
    side, stage = SIDE, 2 * SIDE * (d_block + e_block) * q.element_size()  # bytes of a tile's q, k, v, dout
    while stage > SHARED and side > 16:
        side, stage = side // 2, stage // 2
    # the block diagonals that hold a distance which any query sees
    diagonals = min(triton.cdiv(keys, side), triton.cdiv(mask.reach, side) + 1)
    splits = max(1, min(batch * triton.cdiv(queries, side), PROGRAMS // (diagonals * heads)))
    at_once = max(1, MOST_PARTIAL // (heads * splits * side * side * 4))
    precise = q.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    sums = []
    for start in range(0, diagonals, at_once):
        places = min(at_once, diagonals - start)
        tiles = torch.empty(heads, places, splits, side, side, device=q.device)
        _sum_tiles[(heads, splits, places)](
            q, k, v, dout, lse, delta, table, mask.first, mask.past, tiles,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3],
            batch, queries, keys, start, scale,
            heads=heads, d_width=d_width, e_width=e_width, d_block=d_block, e_block=e_block,
            runs=0 if mask.causal else len(mask.first), side=side,
            precision="ieee" if precise else "tf32",
            num_warps=WARPS, num_stages=2 if 2 * stage <= SHARED else 1,
        )  # fmt: skip
        sums.append(tile_sums(tiles.sum(2)))  # (H, places, 2L)
    found = joined(torch.cat(sums, dim=1))[:, :keys]
    return torch.nn.functional.pad(found, (0, keys - found.shape[1])) if found.shape[1] < keys else found
