"""Attention by PyTorch's FlexAttention: biases by distance and masks on a GPU, without float32 (T, S) scores.

B batch, H heads, T queries (the last T of the S keys' tokens), S keys, D and E widths of a head's keys and
values, R distances. The bias is a table (H, R) float32 that the kernel looks up and adds to float32 scores.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from posenc.core.errors import first_line
from posenc.encodings.base import Encoding
from posenc.model.masked import Masked

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

log = logging.getLogger(__name__)

# Dynamo keeps 8 variants of a function and would then run FlexAttention uncompiled, all scores in memory.
# A variant is a precision, a pair of head widths, a form of bias and of mask; and in training a (B, T).
VARIANTS = 128
LEAST_WIDTH = 16  # of heads: what Triton's products take
MAX_MASK = 1 << 30  # pairs of a mask, a byte each: 32768 tokens
KEPT_MASKS = 32  # of an encoding with a `visible` hook: 12 layers at 2 windows
SERVED = frozenset({"positions", "embed", "rotate", "distance_bias", "visible"})

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


@torch.compiler.disable  # tried once, not traced
def serves(encoding: Encoding, q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether FlexAttention can compute this attention: q (B, H, T, D), k (B, H or 1, S, D), v (B, H, S, E).

    Not where a hook needs the scores, the weights or both positions, or where drawn positions meet a mask.
    """
    hooks = encoding.hooks
    if not hooks <= SERVED or hooks >= {"positions", "visible"} or q.shape[2] * k.shape[2] > MAX_MASK:
        return False
    return min(q.shape[-1], v.shape[-1]) >= LEAST_WIDTH and works(q.device)


@cache
def works(device: torch.device) -> bool:
    """Whether it compiles and runs here, with a learned table: tried once. If not, a warning says why."""
    if importlib.util.find_spec("triton") is None:
        return False
    q = torch.zeros(1, 2, 128, 32, device=device, requires_grad=True)
    table = torch.zeros(2, 128, device=device, requires_grad=True)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score + table[h, (q_idx - kv_idx).clamp_min(0)]

    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            _training(q, q, q, score_mod, _causal(128, 128, device), 1.0).sum().backward()
    except Exception as error:  # compilers, drivers and Triton each raise their own
        log.warning("FlexAttention does not run here, slower blocks do: %s", first_line(error))
        return False
    return True


@torch.compiler.disable  # masks are looked up, not traced; the kernel itself is compiled nevertheless
def attend_flex(
    q: Tensor, k: Tensor, v: Tensor, pos: Tensor, encoding: Encoding, layer: int, scale: float
) -> Tensor:
    """Return the attention output (B, H, T, E) of q (B, H, T, D) over k (B, H or 1, S, D), v (B, H, S, E).

    q and k have been through `rotate`; pos (S,) are the keys' positions; `serves` said yes.
    """
    q, k = q.to(v.dtype), k.to(v.dtype)  # the kernel mixes none; under autocast v has the products' dtype
    if k.shape[1] != q.shape[1]:
        k = k.expand(-1, q.shape[1], -1, -1).contiguous()
    score_mod = None
    if "distance_bias" in encoding.hooks:
        score_mod = _bias(encoding, pos, layer, q.shape[1], q.shape[2])
    kernel = _training if torch.is_grad_enabled() else _evaluation
    return kernel(q, k, v, score_mod, block_mask(encoding, pos, layer, q.shape[2]), scale)


def _bias(encoding: Encoding, pos: Tensor, layer: int, heads: int, queries: int) -> ScoreMod:
    """Look up the bias by the distance of the positions pos (S,) of the keys and of the last `queries`."""
    at, length = torch.arange(len(pos), device=pos.device), len(pos)
    span = length - 1
    if "positions" in encoding.hooks:  # drawn: another span each time, so tables as long as a power of two
        at = pos - pos[0]
        span = int(at[-1])
        length = 1 << span.bit_length()
    r = torch.arange(length, device=pos.device).clamp_max(span)
    table = encoding.distance_bias(r, layer).float().expand(heads, -1).contiguous()  # (H, R)
    k_at = at.int()
    q_at = k_at[len(pos) - queries :].clone()

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score + table[h, (q_at[q_idx] - k_at[kv_idx]).clamp_min(0)]

    return score_mod


_masks: WeakKeyDictionary[Encoding, dict[Any, BlockMask]] = WeakKeyDictionary()


def block_mask(encoding: Encoding, pos: Tensor, layer: int, queries: int) -> BlockMask:
    """Return the blocks of causal and visible pairs, made once for a layer and window."""
    keys = len(pos)
    if "visible" not in encoding.hooks:
        return _causal(queries, keys, pos.device)
    kept, key = _masks.setdefault(encoding, {}), (layer, queries, keys, pos.device)
    if key not in kept:
        if len(kept) >= KEPT_MASKS:
            del kept[next(iter(kept))]
        with torch.inference_mode(False), torch.no_grad():  # a training step may use it next
            allowed = Masked(encoding, pos, layer, queries).allowed(0, queries, keys)  # (T, S)
            kept[key] = _blocks(lambda b, h, i, j: allowed[i, j], queries, keys, pos.device)
    return kept[key]


@lru_cache(maxsize=KEPT_MASKS)
def _causal(queries: int, keys: int, device: torch.device) -> BlockMask:
    with torch.inference_mode(False):
        offset = torch.tensor(keys - queries, device=device)  # as a number it would be a variant each
        return _blocks(lambda b, h, i, j: i + offset >= j, queries, keys, device)


def _blocks(mask_mod: Any, queries: int, keys: int, device: torch.device) -> BlockMask:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(mask_mod, None, None, queries, keys, device=str(device))


# Two functions, since Dynamo keeps its variants by function: an evaluation of many lengths turns its own
# variant dynamic, never the one that training uses.


def _for_training(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, blocks: Any, scale: float) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks, scale=scale)


def _for_evaluation(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, blocks: Any, scale: float) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks, scale=scale)


@cache
def _compiled(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, VARIANTS)
    # fullgraph: past the limit an error, not the uncompiled fallback
    return torch.compile(function, fullgraph=True, dynamic=dynamic)


def _training(*inputs: Any) -> Tensor:
    out: Tensor = _compiled(_for_training, False)(*inputs)  # its shapes stay: static ones make faster kernels
    return out


def _evaluation(*inputs: Any) -> Tensor:
    # Many lengths: the second one makes a kernel for all. The CPU's dynamic kernels do not compile (torch
    # 2.13: an undeclared variable in its C++).
    out: Tensor = _compiled(_for_evaluation, None if inputs[0].is_cuda else False)(*inputs)
    return out
