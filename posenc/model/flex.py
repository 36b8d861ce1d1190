"""Attention by PyTorch's FlexAttention: biases, gates and masks on a GPU, no (T, S) scores in memory.

FlexAttention makes the scores tile by tile, and lets a function of ours change each tile (`score_mod`). That
function looks a bias up in a float32 table. The gradient of the table comes from score_gradients.py where
that applies. Elsewhere FlexAttention makes it by atomic additions.

B batch, H heads, S keys, T queries (those of the last T tokens), D head width of queries and keys, E that of
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

# Change the scores of a tile: (scores, text, head, index of the query, index of the key) -> scores.
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


class Added(NamedTuple):
    """A function that adds a bias to the scores, and options of FlexAttention's kernel that suit it."""

    score_mod: ScoreMod
    options: dict[str, int]  # how large its tiles are, and how many are fetched ahead


# Dynamo compiles a function anew for each form of its arguments: here for each precision, pair of head
# widths, kind of bias and kind of mask, and in training for each batch size and length. By default it stops
# after 8 forms, and then runs FlexAttention uncompiled, with all scores in memory.
MOST_VARIANTS = 128
MAX_MASK = 1 << 30  # pairs of query and key in a mask, a byte each: 32768 tokens
MAX_PAIR_BIAS = 1 << 28  # numbers of a bias of pairs, (H, T, S): 1 GiB
MAX_EXPANDED = 1 << 26  # numbers of a bias by distance that is written out for all pairs, (H, T, S): 256 MiB
STATIC_FROM = 2048  # number of keys from which on each length of an evaluation gets a kernel of its own

# A bias of pairs or distances is fetched ahead, tile by tile, into the shared memory of the GPU.
# FlexAttention would fetch three stages ahead, which need more of that memory than an H100 has.
TWO_STAGES = {"num_stages": 2}
NARROW_TILES = {"fwd_BLOCK_M": 128, "fwd_BLOCK_N": 64}
SMALL_TILES = {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64, "num_stages": 1}  # for less memory; not measured
LARGE_MEMORY_GENERATIONS = (9, 10)  # compute capabilities of H100 and B200: 227 KB of shared memory
# Gates have one number for each query and each key, which is less to fetch. So FlexAttention chooses. A step
# of fox then takes 34.9 ms, with narrow tiles 38.5 (32M parameters, T = 1024, bf16, H100, torch 2.11).
NO_OPTIONS: dict[str, int] = {}

KEPT_MASKS = 32  # enough for 12 layers of an encoding with a `visible` hook, at 2 window lengths
# The hooks that FlexAttention has a place for.
SERVED = frozenset(
    {
        "positions",
        "embed",
        "shift",
        "adjust",
        "rotate",
        "distance_bias",
        "bias",
        "visible",
        "sink",
        "output",
    }
)
GATE_HOOKS = frozenset({"prepare", "scores"})  # hooks through which an encoding cumulates gates


def serves(encoding: Encoding, queries: int, keys: int, device: torch.device) -> bool:
    """Tell whether FlexAttention can compute this encoding's attention of `queries` with `keys` tokens."""
    hooks = encoding.hooks
    if encoding.cumulates_gates:
        # `_gate_bias` adds the gates and nothing else.
        if hooks & {"bias", "distance_bias"}:
            return False
        if "visible" in hooks and torch.is_grad_enabled():
            return False  # the gradient of gates knows no mask but the causal one
        hooks = hooks - GATE_HOOKS
    if "sink" in hooks:  # `_beside_sink` replaces `weights`
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

    That is so for an encoding with the hook `bias`, and where positions are drawn: a distance in tokens then
    does not tell the distance in positions.
    """
    hooks = encoding.hooks
    return "bias" in hooks or {"positions", "distance_bias"}.issubset(hooks)


def attend_flex(heads: Heads, layer: Layer, scale: float, state: object = None) -> Tensor:
    """Return the output (B, H, T, E) of rotated queries and keys; all heads have keys of their own.

    `state` is what the encoding's hook `prepare` returned.
    """
    q, k, v = heads
    # The kernel wants one dtype, that of v, which autocast has chosen. It also wants separate keys for every
    # head in memory: keys that the heads share are copied.
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
    """Return the output and `log_sum` of an attention to which the sink is added, a key without a value.

    All weights of a query become smaller by the same factor, and so does its output.
    """
    sink = layer.encoding.sink(layer.number)[:, None]  # (H, 1)
    factor = torch.sigmoid(log_sum - sink)  # (B, H, T)
    return (output * factor[..., None]).to(output.dtype), torch.logaddexp(log_sum, sink)


def _attend_biased(heads: Heads, layer: Layer, scale: float, bias: Tensor, *, by_distance: bool) -> Tensor:
    """Attend with a bias (H or 1, T, S) of pairs, or (H or 1, S) by distance."""
    # The kernel looks a bias up by the number of the head, so one that heads share is written out for each.
    bias = bias.float().expand(heads.q.shape[1], *bias.shape[1:]).contiguous()
    queries = heads.q.shape[2]
    keys = heads.k.shape[2]
    # The gradient of a learned bias is made by score_gradients.py if each query sees its whole past. The
    # kernel then gets the bias without a gradient.
    is_learned = torch.is_grad_enabled() and bias.requires_grad
    sees_all_past = queries == keys and "visible" not in layer.encoding.hooks
    uses_score_gradients = is_learned and sees_all_past
    table = bias.detach() if uses_score_gradients else bias
    # Written out for all pairs, a bias by distance is read faster. But its gradient would be as large.
    is_small = len(bias) * queries * keys <= MAX_EXPANDED
    if not by_distance:
        added = _pair_bias(table)
    elif is_small and not table.requires_grad:
        added = _pair_bias(_expanded(table, queries, keys))
    else:
        added = _distance_bias(table, _offset(heads))
    output, log_sum = _attend(heads, layer, scale, added, with_log_sum=uses_score_gradients)
    if not uses_score_gradients:
        return output
    return with_bias_gradient(Attended(*heads, output, log_sum), bias, scale, by_distance=by_distance)


def _expanded(table: Tensor, queries: int, keys: int) -> Tensor:
    """Return the bias of pairs (H, T, S) from one by distance (H, S)."""
    key = torch.arange(keys, device=table.device)
    query = key[keys - queries :, None]
    return table[:, (query - key).clamp_min(0)]


def _attend_gated(heads: Heads, layer: Layer, scale: float, gates: Gates) -> Tensor:
    """Attend with cumulated gates."""
    # Gates are made of the layer's input, so in training they always need a gradient.
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

    The table is read from a strip: the biases of distances S-1, ..., 1, 0, then S zeros for future keys. So
    neighbouring keys read neighbouring numbers, and no index needs to be clamped.
    """
    strip = torch.cat((table.flip(-1), torch.zeros_like(table)), dim=-1)  # (H, 2 S)
    index_of_distance_0 = table.shape[-1] - 1

    def add(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = _from_start(query, offset) - key  # negative for the future
        return score + strip[h, index_of_distance_0 - distance]

    return Added(add, NARROW_TILES | TWO_STAGES)


def _pair_bias(bias: Tensor) -> Added:
    """Add bias[h, i, j], bias (H, T, S) float32."""

    def add(score: Tensor, b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + bias[h, query, key]

    return Added(add, TWO_STAGES)


def _gate_bias(gates: Gates, offset: Tensor | None) -> Added:
    """Add -g_i (C_i - C_j) of `Gates`. C is float64, and is given to the kernel as two float32 numbers."""
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

    score_gradients.py needs the second, which has no gradient. It is empty unless `with_log_sum` is True.
    """
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    q, k, v = heads
    mask = layer.mask
    if mask is None:
        mask = block_mask(masking(layer.encoding), layer.number, q.shape[2], k.shape[2], q.device)
    kernel: Callable[..., Any] = flex_attention  # a compiled block compiles it together with itself
    if not torch.compiler.is_compiling():
        kernel = _compiled(_dynamic(heads))
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
    """Return torch.compile's `dynamic`: False for a kernel of this length alone, None for one of any length.

    Training always has the same length, and a kernel of that length is faster: twice as fast at 8192 keys
    (H100). The many short windows of an evaluation share a kernel of any length. On a CPU such a kernel does
    not compile (torch 2.13: its C++ lacks a variable).
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
    """Return the encoding if it hides keys, else None: the argument of `block_mask`."""
    # `block_mask` keeps masks by its arguments. With None all encodings that hide nothing share them.
    return encoding if "visible" in encoding.hooks else None


@lru_cache(maxsize=KEPT_MASKS)
def block_mask(
    encoding: Encoding | None, layer: int, queries: int, keys: int, device: torch.device
) -> BlockMask:
    """Return FlexAttention's mask of the causal pairs that `encoding.visible` allows; without one, of all."""
    from torch.nn.attention.flex_attention import create_block_mask

    # Outside of inference mode: the mask is kept, and a training step may use it next.
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
    """Return FlexAttention compiled, with torch.compile's argument `dynamic`."""
    from torch.nn.attention.flex_attention import flex_attention

    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, MOST_VARIANTS)
    # With fullgraph it raises an error past that limit, instead of running uncompiled.
    return torch.compile(flex_attention, fullgraph=True, dynamic=dynamic)
