"""Attention by PyTorch's FlexAttention: biases by distance and masks on a GPU, no (T, S) scores in memory.

B batch, H heads, T queries (the last T of the S keys' tokens), S keys, D and E widths of a head's keys and
values, R distances. The bias is a table (H, R) float32 that the kernel looks up and adds to float32 scores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc.core.machine import compiler_works
from posenc.encodings.base import Encoding
from posenc.model.inputs import Heads, Layer

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


# Dynamo keeps 8 variants of a function and would then run FlexAttention uncompiled, all scores in memory.
# There is one for each precision, pair of head widths and form of bias and mask; in training for each (B, T).
MOST_VARIANTS = 128
LEAST_WIDTH = 16  # numbers in a head: Triton's products take no fewer
MAX_MASK = 1 << 30  # pairs of query and key, a byte each: 32768 tokens
KEPT_MASKS = 32  # 12 layers of an encoding with a `visible` hook, at 2 windows
SERVED = frozenset({"positions", "embed", "rotate", "distance_bias", "visible"})


@torch.compiler.disable  # it tries the compiler out, which must not be traced
def serves(encoding: Encoding, heads: Heads) -> bool:
    """Tell whether FlexAttention can compute this attention."""
    q, k, v = heads
    hooks = encoding.hooks
    if not hooks <= SERVED or hooks >= {"positions", "visible"} or q.shape[2] * k.shape[2] > MAX_MASK:
        return False
    return min(q.shape[-1], v.shape[-1]) >= LEAST_WIDTH and compiler_works(q.device)


@torch.compiler.disable  # masks are looked up, not traced; the kernel itself is compiled nevertheless
def attend_flex(heads: Heads, layer: Layer, scale: float) -> Tensor:
    """Return the output (B, H, T, E) of rotated queries and keys; all heads have keys of their own."""
    q, k, v = heads
    encoding, number, pos = layer
    # The kernel takes one dtype (under autocast v has that of products), and keys copied for every head.
    q = q.to(v.dtype)
    k = k.to(v.dtype).contiguous()
    score_mod = None
    if "distance_bias" in encoding.hooks:
        score_mod = _bias(layer, q.shape[1], q.shape[2])
    masking_encoding = encoding if "visible" in encoding.hooks else None
    blocks = block_mask(masking_encoding, number, q.shape[2], len(pos), pos.device)
    # Training keeps its shapes, and static ones make faster kernels. The many lengths of an evaluation share
    # a dynamic one; but those of a CPU do not compile (torch 2.13: an undeclared variable in its C++).
    dynamic = None if q.is_cuda and not torch.is_grad_enabled() else False
    out: Tensor = _compiled(dynamic)(q, k, v, score_mod=score_mod, block_mask=blocks, scale=scale)
    return out


def _bias(layer: Layer, heads: int, queries: int) -> Callable[..., Tensor]:
    """Return a FlexAttention modification that adds the bias by distance to scores of the last `queries`."""
    encoding, number, pos = layer
    length = len(pos)
    span = length - 1
    from_start = torch.arange(length, device=pos.device)
    if "positions" in encoding.hooks:
        # Drawn positions have another span each time: lengths of the table are rounded to a power of two.
        from_start = pos - pos[0]
        span = int(from_start[-1])
        length = 1 << span.bit_length()
    r = torch.arange(length, device=pos.device).clamp_max(span)
    table = encoding.distance_bias(r, number).float().expand(heads, -1).contiguous()  # (H, R)
    k_pos = from_start.int()
    q_pos = k_pos[len(pos) - queries :].clone()

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score + table[h, (q_pos[q_idx] - k_pos[kv_idx]).clamp_min(0)]

    return score_mod


@lru_cache(maxsize=KEPT_MASKS)
def block_mask(
    encoding: Encoding | None, layer: int, queries: int, keys: int, device: torch.device
) -> BlockMask:
    """Return the causal pairs that the encoding's `visible` allows, as blocks; without one all of them."""
    from torch.nn.attention.flex_attention import create_block_mask

    # outside of inference mode, since a training step may use the mask next
    with torch.inference_mode(False), torch.no_grad():
        # a tensor, since every number would make a variant
        offset = torch.tensor(keys - queries, device=device)
        make = partial(create_block_mask, B=None, Q_LEN=queries, KV_LEN=keys, device=str(device))
        if encoding is None:
            return make(lambda b, h, i, j: i + offset >= j, H=None)
        pos = torch.arange(keys, device=device)
        q_pos = pos[keys - queries :]
        is_past = q_pos[:, None] > pos
        is_itself = q_pos[:, None] == pos
        allowed = is_past & encoding.visible(q_pos, pos, layer) | is_itself  # ([H,] T, S)
        if allowed.ndim == 2:
            return make(lambda b, h, i, j: allowed[i, j], H=None)
        return make(lambda b, h, i, j: allowed[h, i, j], H=len(allowed))


@cache
def _compiled(dynamic: bool | None) -> Callable[..., Any]:
    """Return FlexAttention, compiled for dynamic shapes or for static ones."""
    from torch.nn.attention.flex_attention import flex_attention

    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, MOST_VARIANTS)
    # with fullgraph it fails past that limit, and does not run uncompiled
    return torch.compile(flex_attention, fullgraph=True, dynamic=dynamic)
