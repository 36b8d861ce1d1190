"""Attention by PyTorch's FlexAttention: biases, gates and masks on a GPU, no (T, S) scores in memory.

FlexAttention makes scores tile by tile and calls a function for each tile that may change them. That function
looks the bias up, as float32. Gradients of what is looked up come from `score_gradients` where it can make
them, and from FlexAttention's own atomic additions elsewhere.

B batch, H heads, T queries (the last T of the S keys' tokens), S keys, D and E widths of a head's keys and
values, R distances.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from posenc.core.machine import compiler_works
from posenc.encodings.base import Encoding
from posenc.model.inputs import Heads, Layer
from posenc.model.score_gradients import Attended, Gates, with_bias_gradient, with_gate_gradient

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# Changes the scores of a tile: of (scores, text, head, index of the query, index of the key).
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Added(NamedTuple):
    """What is added to the scores."""

    score_mod: ScoreMod
    options: dict[str, int]  # of FlexAttention's kernel: how large its tiles are, how many it fetches ahead


# Dynamo compiles a function anew for each form of its arguments: here for each precision, pair of head
# widths, kind of bias and kind of mask, and in training for each batch size and length. By itself it stops
# after 8 and then runs FlexAttention uncompiled, with all scores in memory.
MOST_VARIANTS = 128
MAX_MASK = 1 << 30  # pairs of query and key, a byte each: 32768 tokens
MAX_PAIR_BIAS = 1 << 28  # numbers (H, T, S) of an encoding's own bias of pairs: 1 GiB
MAX_EXPANDED = 1 << 26  # numbers (H, T, S) that a bias by distance may be written out to: 256 MiB
STATIC_FROM = 2048  # keys from which on an evaluation gets a kernel for its very length

# A bias that differs within a tile is fetched ahead, into the memory that the programs of a GPU's core share.
# Three stages of that, FlexAttention's choice, need more than an H100 has.
TWO_STAGES = {"num_stages": 2}
NARROW_TILES = {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64}
SMALL_TILES = {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64, "num_stages": 1}  # for less memory; not measured
LARGE_MEMORY_GENERATIONS = (9, 10)  # compute capabilities of H100 and B200: 227 KB for a program
# Gates differ only from query to query and from key to key. They are left to FlexAttention's choice: a step
# of fox takes 34.9 ms with it and 38.5 with narrow tiles (32M parameters, T = 1024, bf16, H100, torch 2.11).
NO_OPTIONS: dict[str, int] = {}

KEPT_MASKS = 32  # 12 layers of an encoding with a `visible` hook, at 2 windows
# The hooks that FlexAttention has a place for.
SERVED = frozenset(
    {"positions", "embed", "adjust", "rotate", "distance_bias", "bias", "visible", "sink", "output"}
)
GATE_HOOKS = frozenset({"prepare", "scores"})  # hooks through which an encoding cumulates gates


def serves(encoding: Encoding, queries: int, keys: int, device: torch.device) -> bool:
    """Tell whether FlexAttention can compute this encoding's attention of `queries` with `keys` tokens."""
    hooks = encoding.hooks
    if encoding.cumulates_gates:
        if hooks & {"bias", "distance_bias"}:
            return False
        if "visible" in hooks and torch.is_grad_enabled():
            return False  # the gradient of gates knows no mask but the causal one
        hooks = hooks - GATE_HOOKS
    if "sink" in hooks:  # it is added after the kernel, and does what `weights` does elsewhere
        hooks = hooks - {"weights"}
    if not hooks.issubset(SERVED) or queries * keys > MAX_MASK:
        return False
    if {"positions", "visible"}.issubset(hooks):
        return False  # a mask is kept for the next step, which draws other positions
    if needs_pairs(encoding) and encoding.shape.n_heads * queries * keys > MAX_PAIR_BIAS:
        return False
    return compiler_works(device)


def needs_pairs(encoding: Encoding) -> bool:
    """Tell whether the bias is looked up by pairs (H, T, S), not by distances (H, R).

    So it is where an encoding says so, and where positions are drawn, since then a distance in tokens does
    not tell the distance of positions.
    """
    hooks = encoding.hooks
    return "bias" in hooks or {"positions", "distance_bias"}.issubset(hooks)


def attend_flex(heads: Heads, layer: Layer, scale: float, state: object = None) -> Tensor:
    """Return the output (B, H, T, E) of rotated queries and keys; all heads have keys of their own.

    `state` is what the encoding's hook `prepare` returned.
    """
    q, k, v = heads
    # The kernel takes one dtype (under autocast v has that of products), and keys copied for every head.
    is_shared_by_heads = k.stride(1) == 0
    k = k.contiguous() if is_shared_by_heads else k
    heads = Heads(q.to(v.dtype), k.to(v.dtype), v)
    encoding = layer.encoding
    if encoding.cumulates_gates:
        return _attend_gated(heads, layer, scale, Gates(*encoding.gates_of(state)))
    if needs_pairs(encoding):
        bias = encoding.bias(layer.pos[-q.shape[2] :], layer.pos, layer.number)  # (H, T, S)
        return _attend_biased(heads, layer, scale, bias, by_distance=False)
    if "distance_bias" in encoding.hooks:
        table = encoding.distance_bias(torch.arange(len(layer.pos), device=q.device), layer.number)  # (H, R)
        return _attend_biased(heads, layer, scale, table, by_distance=True)
    output, _ = _attend(heads, layer, scale, None, with_log_sum=False)
    return output


def _beside_sink(output: Tensor, log_sum: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """Return output and `log_sum` of an attention with one more key, whose score is the encoding's sink.

    The weights of the other keys only become smaller, all of a query by the same factor.
    """
    sink = layer.encoding.sink(layer.number)[:, None]  # (H, 1)
    share = torch.sigmoid(log_sum - sink)  # (B, H, T)
    return (output * share[..., None]).to(output.dtype), torch.logaddexp(log_sum, sink)


def _attend_biased(heads: Heads, layer: Layer, scale: float, bias: Tensor, *, by_distance: bool) -> Tensor:
    """Attend with a bias (H or 1, T, S) of pairs, or (H or 1, S) by distance."""
    bias = bias.float().expand(heads.q.shape[1], *bias.shape[1:]).contiguous()
    is_learned = torch.is_grad_enabled() and bias.requires_grad
    queries = heads.q.shape[2]
    keys = heads.k.shape[2]
    sees_all_past = queries == keys and "visible" not in layer.encoding.hooks
    has_own_gradient = is_learned and sees_all_past
    looked_up = bias.detach() if has_own_gradient else bias
    # Written out, a bias by distance is read faster. But its gradient must not become as large.
    is_small = len(bias) * queries * keys <= MAX_EXPANDED
    if not by_distance:
        added = _pair_bias(looked_up)
    elif is_small and not looked_up.requires_grad:
        added = _pair_bias(_expanded(looked_up, queries, keys))
    else:
        added = _distance_bias(looked_up, _offset(heads))
    output, log_sum = _attend(heads, layer, scale, added, with_log_sum=has_own_gradient)
    if not has_own_gradient:
        return output
    return with_bias_gradient(Attended(*heads, output, log_sum), bias, scale, by_distance=by_distance)


def _expanded(table: Tensor, queries: int, keys: int) -> Tensor:
    """Return the bias of pairs (H, T, S) from one by distance (H, S)."""
    key = torch.arange(keys, device=table.device)
    query = key[keys - queries :, None]
    return table[:, (query - key).clamp_min(0)]


def _attend_gated(heads: Heads, layer: Layer, scale: float, gates: Gates) -> Tensor:
    """Attend with cumulated gates."""
    # gates are made of the layer's input, so in training their gradient is always wanted
    is_learned = torch.is_grad_enabled()
    added = _gate_bias(gates, _offset(heads))
    output, log_sum = _attend(heads, layer, scale, added, with_log_sum=is_learned)
    if not is_learned:
        return output
    return with_gate_gradient(Attended(*heads, output, log_sum), gates, scale)


def _offset(heads: Heads) -> Tensor | None:
    """Return the number of tokens before the first query, as a tensor; None stands for 0.

    Dynamo would compile the kernel anew for each int of Python.
    """
    queries = heads.q.shape[2]
    keys = heads.k.shape[2]
    return None if queries == keys else torch.full((), keys - queries, device=heads.q.device)


def _from_start(query: Tensor, offset: Tensor | None) -> Tensor:
    """Return the token of a query, counted from the window's first one."""
    return query if offset is None else query + offset


def _distance_bias(table: Tensor, offset: Tensor | None) -> Added:
    """Add table[h, i - j], table (H, S) float32.

    It is read from a strip: the biases of distances S-1, ..., 1, 0, then S zeros for the future. So
    neighbouring keys read neighbouring numbers, and no index needs to be clamped.
    """
    strip = torch.cat((table.flip(-1), torch.zeros_like(table)), dim=-1)  # (H, 2 S)
    place_of_distance_0 = table.shape[-1] - 1

    def add(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = _from_start(query, offset) - key  # negative for the future
        return score + strip[h, place_of_distance_0 - distance]

    return Added(add, NARROW_TILES | TWO_STAGES)


def _pair_bias(bias: Tensor) -> Added:
    """Add bias[h, i, j], bias (H, T, S) float32."""

    def add(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + bias[h, query, key]

    return Added(add, TWO_STAGES)


def _gate_bias(gates: Gates, offset: Tensor | None) -> Added:
    """Add -g_i (C_i - C_j) of `Gates`, C as the sum of two float32 numbers."""
    high, low = gates.split_sums()  # (B, H, S) each
    weight = None if gates.weight is None else gates.weight.detach().float()  # (B, H, S)

    def add(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        i = _from_start(query, offset)
        difference = (high[b, h, i] - high[b, h, key]) + (low[b, h, i] - low[b, h, key])
        if weight is None:
            return score - difference
        return score - weight[b, h, i] * difference

    return Added(add, NO_OPTIONS)


def _attend(
    heads: Heads, layer: Layer, scale: float, added: Added | None, *, with_log_sum: bool
) -> tuple[Tensor, Tensor]:
    """Return the output (B, H, T, E) and the logarithm of the sum of exp(scores), (B, H, T) float32.

    The second is there for `score_gradients`: without gradients of its own, and empty without `with_log_sum`.
    """
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    q, k, v = heads
    mask = layer.mask
    if mask is None:
        mask = block_mask(masking(layer.encoding), layer.number, q.shape[2], k.shape[2], q.device)
    # inside of a compiled block it is compiled with the block
    uncompiled: Callable[..., Any] = flex_attention
    kernel = uncompiled if torch.compiler.is_compiling() else _compiled(_dynamic(heads))
    attention = partial(
        kernel,
        score_mod=None if added is None else added.score_mod,
        block_mask=mask,
        scale=scale,
        kernel_options=_kernel_options(heads, added),
    )
    has_sink = "sink" in layer.encoding.hooks
    if not with_log_sum and not has_sink:
        return attention(q, k, v), q.new_empty(0)
    output, aux = attention(q, k, v, return_aux=AuxRequest(lse=True))
    log_sum = aux.lse
    if has_sink:
        output, log_sum = _beside_sink(output, log_sum, layer)
    return output, log_sum.detach()


def _dynamic(heads: Heads) -> bool | None:
    """Return torch.compile's argument `dynamic`: False for a kernel of these lengths alone, None for any.

    Training keeps its lengths, and a kernel for these alone is faster: twice as fast at 8192 keys (H100). The
    short windows of an evaluation share one. On a CPU kernels for any length do not compile (torch 2.13: its
    C++ lacks a variable).
    """
    is_training = torch.is_grad_enabled()
    is_long = heads.k.shape[2] >= STATIC_FROM
    if is_training or is_long or not heads.q.is_cuda:
        return False
    return None


def _kernel_options(heads: Heads, added: Added | None) -> dict[str, int] | None:
    """Return the tiles and the stages of the kernel; None leaves them to FlexAttention."""
    if added is None or not heads.q.is_cuda or heads.q.element_size() > 2:
        return None
    generation, _ = torch.cuda.get_device_capability(heads.q.device)
    options = added.options if generation in LARGE_MEMORY_GENERATIONS else SMALL_TILES
    return options or None


def masking(encoding: Encoding) -> Encoding | None:
    """Return the encoding if it hides keys, for `block_mask`."""
    return encoding if "visible" in encoding.hooks else None


@lru_cache(maxsize=KEPT_MASKS)
def block_mask(
    encoding: Encoding | None, layer: int, queries: int, keys: int, device: torch.device
) -> BlockMask:
    """Return the causal pairs that the encoding's `visible` allows, as blocks; without one all of them."""
    from torch.nn.attention.flex_attention import create_block_mask

    # outside of inference mode, since a training step may use the mask next
    with torch.inference_mode(False), torch.no_grad():
        # a tensor, since Dynamo would compile the kernel anew for each int of Python
        offset = torch.tensor(keys - queries, device=device)
        make = partial(create_block_mask, B=None, Q_LEN=queries, KV_LEN=keys, device=str(device))
        if encoding is None:
            return make(lambda b, h, i, j: i + offset >= j, H=None)
        pos = torch.arange(keys, device=device)
        q_pos = pos[keys - queries :]
        is_past = q_pos[:, None] > pos
        is_itself = q_pos[:, None] == pos
        allowed = (is_past & encoding.visible(q_pos, pos, layer)) | is_itself  # ([H,] T, S)
        if allowed.ndim == 2:
            return make(lambda b, h, i, j: allowed[i, j], H=None)
        return make(lambda b, h, i, j: allowed[h, i, j], H=len(allowed))


@cache
def _compiled(dynamic: bool | None) -> Callable[..., Any]:
    """Return FlexAttention, compiled for dynamic shapes or for static ones."""
    from torch.nn.attention.flex_attention import flex_attention

    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, MOST_VARIANTS)
    # with fullgraph it raises an error past that limit, instead of running uncompiled
    return torch.compile(flex_attention, fullgraph=True, dynamic=dynamic)
