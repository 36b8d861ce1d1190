"""Attention by PyTorch's FlexAttention: biases by distance and masks on a GPU, no (T, S) tensor.

B batch, H heads, T queries (the last T of the S keys' tokens), S keys, D and E widths of a head's keys and
values, R distances. The bias is a table (H, R) float32 that the kernel looks up and adds to float32 scores.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from posenc.core.errors import first_line
from posenc.encodings.base import Encoding, Shape
from posenc.model.flex_masks import mask_of
from posenc.model.flex_table import gradient_into_table

log = logging.getLogger(__name__)

# How a learned table gets its gradient; `scripts/check_gpu.py` times both.
# captured  FlexAttention's own backward: an atomic addition for each of B H T^2 / 2 scores into H T numbers.
# tiles     its backward without the table, then one pass of our own: see flex_table.py.
TABLE_GRADIENT: Literal["captured", "tiles"] = "tiles"

# Dynamo keeps 8 variants of a function and would then run FlexAttention uncompiled, all scores in memory.
# A variant is a precision, a pair of head widths, a form of bias and of mask; and in training a (B, T).
VARIANTS = 128

LEAST_WIDTH = 16  # of heads: what Triton's products take
SERVED = frozenset({"positions", "embed", "rotate", "distance_bias", "visible"})

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
# (q, k, v, score_mod, blocks, scale) -> output (B, H, T, E), logsumexp (B, H, T) float32 or None
Attention = Callable[[Tensor, Tensor, Tensor, ScoreMod | None, Any, float], tuple[Tensor, Tensor | None]]


@torch.compiler.disable  # masks are looked up, not traced
def serves(encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, pos: Tensor, layer: int) -> bool:
    """Whether FlexAttention can compute this attention: q (B, H, T, D), k (B, H or 1, S, D), v (B, H, S, E).

    Not where a hook needs the scores, the weights or both positions, where drawn positions meet a mask, or
    where a query sees more than a few runs of keys. On a CPU without gradients only.
    """
    hooks = encoding.hooks
    if not hooks <= SERVED or hooks >= {"positions", "visible"}:
        return False
    if q.is_cuda:
        if min(q.shape[-1], v.shape[-1]) < LEAST_WIDTH or not works(q.device):
            return False
    elif q.device.type != "cpu" or torch.is_grad_enabled():
        return False
    return mask_of(encoding, pos, layer, q.shape[2]) is not None


class _Learned(Encoding):
    """A table (H, R) as the bias."""

    def __init__(self, table: Tensor) -> None:
        super().__init__(Shape(d_model=64, n_heads=2, head_dim=32, n_layers=1, train_length=table.shape[1]))
        self.table = torch.nn.Parameter(table)

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        return self.table[:, r]


@cache
def works(device: torch.device) -> bool:
    """Whether it compiles and gives the numbers of the formula here, with a learned table: tried once.

    Without a C compiler, with another Triton or on another GPU it may not; then a warning says why.
    """
    if importlib.util.find_spec("triton") is None:
        return False
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(1, 2, 128, 32, generator=generator).to(device) for _ in range(4))
    encoding, pos = (
        _Learned(torch.randn(2, 128, generator=generator)).to(device),
        torch.arange(128).to(device),
    )
    hidden = pos > pos[:, None]
    try:
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            inputs = [q.requires_grad_(), encoding.table]
            bias = encoding.bias(pos, pos, 0).masked_fill(hidden, float("-inf"))
            exact = torch.softmax(q @ k.transpose(-1, -2) * 32**-0.5 + bias, dim=-1) @ v
            wanted = [exact, *torch.autograd.grad(exact, inputs, grad)]
            out = attend_flex(q, k, v, pos, encoding, 0, 32**-0.5)
            found = [out, *torch.autograd.grad(out, inputs, grad)]
    except Exception as error:  # compilers, drivers and Triton each raise their own
        log.warning("FlexAttention does not run here, slower blocks do: %s", first_line(error))
        return False
    off = max(
        float(((a - b).abs().max() / b.abs().max()).detach()) for a, b in zip(found, wanted, strict=True)
    )
    if not off < 0.02:  # float32 products may run in TF32, 10 bits
        log.warning("FlexAttention is off by %.1e here and is not used; slower blocks are", off)
        return False
    return True


@torch.compiler.disable  # likewise; the kernel itself is compiled nevertheless
def attend_flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pos: Tensor,
    encoding: Encoding,
    layer: int,
    scale: float,
    attention: Attention | None = None,
) -> Tensor:
    """Attention output (B, H, T, E) of q (B, H, T, D) over k (B, H or 1, S, D), v (B, H, S, E).

    q and k have met `rotate`; pos (S,) are the keys' positions; `serves` said yes. `attention` stands for the
    compiled kernel.
    """
    mask = mask_of(encoding, pos, layer, q.shape[2])
    if mask is None:
        raise ValueError("this mask is not one for FlexAttention: ask `serves` first")
    q, k = q.to(v.dtype), k.to(v.dtype)  # the kernel mixes none; under autocast v has the products' one
    if k.shape[1] != q.shape[1]:
        k = k.expand(-1, q.shape[1], -1, -1).contiguous()
    if "distance_bias" not in encoding.hooks:
        run = attention or (_training if torch.is_grad_enabled() else _evaluation)
        return run(q, k, v, None, mask.blocks, scale)[0]
    span = _span(pos) if "positions" in encoding.hooks else len(pos) - 1
    in_order = span == len(pos) - 1
    table = _table(encoding, layer, span, in_order, q.shape[1], pos.device)
    score_mod = _by_index if in_order and q.shape[2] == len(pos) else _by_position(pos, q.shape[2], in_order)
    learned = torch.is_grad_enabled() and table.requires_grad
    if learned and in_order and TABLE_GRADIENT == "tiles":
        run = attention or _training_with_lse
        out, lse = run(q, k, v, score_mod(table.detach()), mask.blocks, scale)
        assert lse is not None
        return gradient_into_table(out, table, q, k, v, lse, mask, scale)
    run = attention or (_training if torch.is_grad_enabled() else _evaluation)
    return run(q, k, v, score_mod(table), mask.blocks, scale)[0]


_spans: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _span(pos: Tensor) -> int:
    """Largest distance between positions (S,); read from the device once, not once a layer."""
    if pos not in _spans:
        _spans[pos] = int(pos[-1] - pos[0])
    return _spans[pos]


def _table(
    encoding: Encoding, layer: int, span: int, in_order: bool, heads: int, device: torch.device
) -> Tensor:
    """The bias at the distances 0..span, (H, R) float32."""
    # Drawn positions have another span each time: tables as long as a power of two need few variants.
    length = span + 1 if in_order else 1 << span.bit_length()
    r = torch.arange(length, device=device).clamp_max(span)
    return encoding.distance_bias(r, layer).float().expand(heads, -1).contiguous()


def _by_index(table: Tensor) -> ScoreMod:
    """Bias by the distance of indices: positions 0..S-1 and as many queries as keys."""

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score + table[h, (q_idx - kv_idx).clamp_min(0)]

    return score_mod


def _by_position(pos: Tensor, queries: int, in_order: bool) -> Callable[[Tensor], ScoreMod]:
    """Bias by the distance of the positions (S,) of the keys and of the last `queries` of them."""
    keys = len(pos)
    at = torch.arange(keys, device=pos.device) if in_order else pos - pos[0]
    k_at = at.int()
    q_at = k_at[keys - queries :].clone()

    def with_table(table: Tensor) -> ScoreMod:
        def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return score + table[h, (q_at[q_idx] - k_at[kv_idx]).clamp_min(0)]

        return score_mod

    return with_table


# Three functions, since Dynamo keeps its variants by function: an evaluation of many lengths turns its own
# variant dynamic, never the one that training uses.


def _for_training(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, blocks: Any, scale: float) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks, scale=scale)


def _for_training_with_lse(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Any, blocks: Any, scale: float
) -> tuple[Tensor, Tensor | None]:
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    asked = AuxRequest(lse=True)
    out, aux = flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks, scale=scale, return_aux=asked)
    return out, aux.lse


def _for_evaluation(q: Tensor, k: Tensor, v: Tensor, score_mod: Any, blocks: Any, scale: float) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, score_mod=score_mod, block_mask=blocks, scale=scale)


@cache
def _compiled(function: Callable[..., Any], dynamic: bool | None) -> Callable[..., Any]:
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, VARIANTS)
    # fullgraph: past the limit an error, not the uncompiled fallback
    return torch.compile(function, fullgraph=True, dynamic=dynamic)


def _training(*given: Any) -> tuple[Tensor, Tensor | None]:
    return _compiled(_for_training, False)(*given), None  # its shapes stay: static ones make faster kernels


def _training_with_lse(*given: Any) -> tuple[Tensor, Tensor | None]:
    out, lse = _compiled(_for_training_with_lse, False)(*given)
    return out, lse


def _evaluation(*given: Any) -> tuple[Tensor, Tensor | None]:
    # Many lengths: the second one makes a kernel for all. The CPU's such kernels do not compile (torch 2.13:
    # an undeclared variable in its C++).
    return _compiled(_for_evaluation, None if given[0].is_cuda else False)(*given), None
