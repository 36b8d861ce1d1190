"""The gradient of a learned table of biases by distance, from what a fused attention leaves: q, k, v, lse.

B batch, H heads, T queries (the last T of the S keys' tokens), S keys, D and E widths of a head's keys and
values.
With p = exp(scale q k + table[i - j] - lse) and delta_i = sum_e dout_ie out_ie, the gradient of a score is
p (dout v - delta), and that of table[r] its sum over the batch and the diagonal i - j = r.

What the ways cost, for B H T^2 / 2 = 0.2 G scores a layer (B T = 32768 tokens, T = 1024, H = 12, D = E = 64,
bf16) on a GPU of 4.8 TB/s and some 400 TFLOP/s in such products, where FlexAttention's forward and backward
are seven products, 180 GFLOP, 0.45 ms:
  captured  0.2 G atomic additions of 4 bytes into 12 288 numbers (49 kB, 1536 sectors of L2): at one addition
            per clock and sector group far above the products; and in no fixed order.
  blocks    two products and element-wise passes over tensors of scores, about 24 bytes for each, masked or
            not: 0.4 G x 24 B = 10 GB, 2 ms.
  tiles     the same two products in a kernel that keeps a tile of L x L gradients in registers while it goes
            down a block diagonal of every text, where all tiles share their distances: 51 GFLOP, 0.13 ms.
            A tile is written once a program: 4 L^2 bytes, some 1000 of them, 16 MB, 0.01 ms with its reading.
            No atomics: the same sums in the same order every time.
These are estimates; none was measured yet. On a CPU, and where Triton is missing, `blocks` serves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posenc.model.diagonals import sums_by_distance
from posenc.model.flex_masks import Mask

MOST_SCORES = 1 << 24  # float32 scores that `blocks` holds at once, a few times over


def gradient_into_table(
    out: Tensor, table: Tensor, q: Tensor, k: Tensor, v: Tensor, lse: Tensor, mask: Mask, scale: float
) -> Tensor:
    """`out` (B, H, T, E) itself, whose backward also hands the table (H, S) its gradient.

    q, k, v and out are the attention's own, made without a gradient for the table; lse (B, H, T) is natural.
    Nothing but the table gets a gradient here: the attention gives theirs to q, k and v.
    """
    detached = (one.detach() for one in (q, k, v, lse))
    result: Tensor = _IntoTable.apply(out, table, *detached, mask, scale)
    return result


class _IntoTable(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        out: Tensor,
        table: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lse: Tensor,
        mask: Mask,
        scale: float,
    ) -> Tensor:
        ctx.save_for_backward(out, table, q, k, v, lse)
        ctx.mask, ctx.scale = mask, scale
        return out.view_as(out)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        out, table, q, k, v, lse = ctx.saved_tensors
        dtable = None
        if ctx.needs_input_grad[1]:
            wide = torch.promote_types(out.dtype, torch.float32)
            delta = (dout.to(wide) * out.to(wide)).sum(-1)  # (B, H, T)
            way = in_tiles if q.is_cuda else in_blocks
            dtable = way(q, k, v, dout.to(q.dtype), lse, delta, table, ctx.mask, ctx.scale)
        return dout, dtable, None, None, None, None, None, None


def in_tiles(*given: Any) -> Tensor:
    """As `in_blocks`, by a Triton kernel that keeps the gradients of the scores in registers."""
    from posenc.model.flex_kernel import table_gradient  # Triton is there on GPUs alone

    return table_gradient(*given)


def in_blocks(
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
    """Gradient of the table (H, S), from the scores of blocks of queries: memory linear in S.

    q, dout (B, H, T, D or E), k, v (B, H, S, D or E), lse and delta (B, H, T).
    """
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    block = max(1, min(queries, MOST_SCORES // (batch * heads * keys)))
    # Row i of the bias is this strip from S-1-i on: distances i, ..., 1, 0, then the masked future.
    strip = torch.cat((table.flip(-1), table.new_zeros(len(table), keys - 1)), dim=-1)  # (H, 2S - 1)
    wide = torch.promote_types(q.dtype, table.dtype)
    total = torch.zeros_like(table, dtype=wide)
    for start in range(0, queries, block):
        stop = min(start + block, queries)
        seen = keys - queries + stop  # keys up to the block's last query
        bias = strip[:, queries - stop :][:, : seen + stop - start - 1].unfold(-1, seen, 1).flip(1)
        s = (q[:, :, start:stop] @ k[:, :, :seen].transpose(-1, -2)).to(wide) * scale + bias
        p = (s - lse[:, :, start:stop, None]).exp()
        dp = dout[:, :, start:stop] @ v[:, :, :seen].transpose(-1, -2)
        ds = p * (dp - delta[:, :, start:stop, None])
        ds = ds.masked_fill(~mask.allowed(start, stop, seen), 0.0)  # also where p overflowed
        total[:, :seen] += sums_by_distance(ds)
    return total.to(table.dtype)
