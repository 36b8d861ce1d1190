"""Attention by PyTorch's FlexAttention: biases by distance and masks on a GPU, without float32 (T, S) scores.

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
# A variant is a precision, a pair of head widths, a form of bias and of mask; and in training a (B, T).
VARIANTS = 128
LEAST_WIDTH = 16  # of heads: what Triton's products take
MAX_MASK = 1 << 30  # pairs of a mask, a byte each: 32768 tokens
KEPT_MASKS = 32  # 12 layers of an encoding with a `visible` hook, at 2 windows
SERVED = frozenset({"positions", "embed", "rotate", "distance_bias", "visible"})


@torch.compiler.disable  # tried once, not traced
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
    # the kernel mixes no dtypes, and under autocast v has that of products; nor does it expand heads
    q, k = q.to(v.dtype), k.to(v.dtype).contiguous()
    score_mod = None
    if "distance_bias" in encoding.hooks:
        score_mod = _bias(layer, q.shape[1], q.shape[2])
    masking = encoding if "visible" in encoding.hooks else None
    blocks = block_mask(masking, number, q.shape[2], len(pos), pos.device)
    # Training keeps its shapes, and static ones make faster kernels. An evaluation's many lengths share one;
    # but a CPU's dynamic kernels do not compile (torch 2.13: an undeclared variable in its C++).
    dynamic = None if q.is_cuda and not torch.is_grad_enabled() else False
    out: Tensor = _compiled(dynamic)(q, k, v, score_mod=score_mod, block_mask=blocks, scale=scale)
    return out


def _bias(layer: Layer, heads: int, queries: int) -> Callable[..., Tensor]:
    """Look up the bias by the distance of the keys' positions from those of the last `queries`."""
    encoding, number, pos = layer
    length = len(pos)
    span = length - 1
    from_start = torch.arange(length, device=pos.device)
    if "positions" in encoding.hooks:  # drawn: another span each time, so tables as long as a power of two
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
    """Return the blocks of causal pairs that `encoding` (None: any) lets see each other."""
    from torch.nn.attention.flex_attention import create_block_mask

    with torch.inference_mode(False), torch.no_grad():  # a training step may use it next
        offset = torch.tensor(keys - queries, device=device)  # as a number it would be a variant each
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
    from torch.nn.attention.flex_attention import flex_attention

    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, VARIANTS)
    # fullgraph: past the limit an error, not the uncompiled fallback
    return torch.compile(flex_attention, fullgraph=True, dynamic=dynamic)
