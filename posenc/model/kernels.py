"""Scaled dot-product attention with an encoding's hooks, which decide what kernel computes it.

B batch, T queries (the last T of the S keys' tokens), S keys, H heads, D head width, E that of values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encodings.base import Encoding, hooks_on_scores
from posenc.model.inputs import Heads, Layer
from posenc.model.softmax_attention import QueryBlock, Scoring, softmax_attention

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


LEAST_FLEX_WIDTH = 16  # numbers in a head: Triton's products take no fewer


@dataclass(frozen=True)
class Limits:
    """From how many keys on each kernel is used, and how much a block of it may hold."""

    # Largest number of float32 scores in a block of queries (bf16: twice as many), so that memory grows
    # linearly. On a CPU 4 MB stay in its caches: a training step at 512 keys (ALiBi, bf16, two cores) takes
    # 1.04 times as long with 8 MB and 1.05 times with 2 MB. A GPU wants large blocks.
    max_scores: int = 1 << 20
    max_scores_gpu: int = 1 << 26

    # From how many keys on a CPU's fused kernel is quicker than blocks of queries (8192 tokens, 4 heads of
    # 32, on two cores). With gradients it takes 1.2 to 2.6 times as long at 512 keys, 0.7 to 0.9 at 2048.
    # It also saves memory, because blocks keep their weights for the backward pass.
    causal_from: int = 2048
    # The fused kernel with a bias (`masked`) takes 0.7 to 0.85 times as long as blocks, in float32 without
    # gradients. It is not used in training, where with a learned bias it would need memory for T x T numbers.
    masked_from: int = 256
    masked_queries: int = 128  # in a block: 64 and 256 are within 10%
    mask_entries: int = 1 << 22  # in a block of queries, 16 MB of float32

    # From how many keys on a GPU uses FlexAttention: the size of one block of its masks. Its numbers were
    # checked from 192 keys on and its speed at 1024 and 8192 (H100); where it begins to pay was not.
    flex_from: int = 128

    # How many different numbers of keys the blocks of a long window may have. oneDNN makes and keeps code for
    # every shape of a bf16 product. When each block had a shape of its own, a pass of 16384 tokens held 714
    # MB instead of 129 and took 1.4 times as long (cope, 2 heads, one core).
    block_sizes: int = 32


_limits = Limits()


def limits() -> Limits:
    """Return the limits that hold now."""
    return _limits


@contextmanager
def changed_limits(**changes: int) -> Iterator[None]:
    """Use other limits inside: for laws and tests that compare kernels with each other."""
    global _limits
    before = _limits
    _limits = replace(before, **changes)
    try:
        yield
    finally:
        _limits = before


class BiasAndMask:
    """The bias and the mask of a layer, by blocks of queries.

    A bias by distance at contiguous positions is computed once, as a strip of which every block is a view.
    """

    def __init__(self, layer: Layer, queries: int) -> None:
        self.encoding = layer.encoding
        self.layer = layer.number
        self.pos = layer.pos
        self.keys = len(self.pos)
        self.queries = queries
        self.query_pos = self.pos[self.keys - queries :]
        hooks = self.encoding.hooks
        self.has_bias = bool(hooks & {"bias", "distance_bias"})
        self.has_visible = "visible" in hooks
        # Hooks that see the scores get finite ones and a mask; else the future is -inf from the start.
        self.future = 0.0 if hooks_on_scores(self.encoding) & {"scores", "weights"} else float("-inf")
        # a bias by distance is one strip only if neighbours are 1 apart, which drawn positions need not be
        fits_a_strip = "bias" not in hooks and not (self.has_bias and "positions" in hooks)
        self.strip: Tensor | None = None
        self.may_have_gradient = self.has_bias
        if fits_a_strip:
            self.strip = self._make_strip()
            self.may_have_gradient = self.has_bias and self.strip.requires_grad

    def _make_strip(self) -> Tensor:
        """Return (H or 1, 2S - 1): the bias at distances S-1, ..., 1, 0, then `future` S - 1 times."""
        device = self.pos.device
        if self.has_bias:
            distances = torch.arange(self.keys - 1, -1, -1, device=device)
            table = self.encoding.distance_bias(distances, self.layer)  # (H, S)
        else:
            table = torch.zeros(1, self.keys, device=device)
        future = torch.full((len(table), self.keys - 1), self.future, device=device)
        return torch.cat((table, future), dim=-1)

    def bias(self, start: int, stop: int, keys: int) -> Tensor:
        """Return the bias of a block of queries and the first `keys` keys: (H or 1, T block, keys) float32.

        The strip has `self.future` where a key comes after the query; the hook `bias` may have any number.
        """
        if self.strip is None:
            return self.encoding.bias(self.query_pos[start:stop], self.pos[:keys], self.layer)
        # The token i of the window needs the strip from place S-1-i on: its own key, key i, falls on distance
        # 0. So the block's last query begins first, and each earlier one begins a place later.
        first_place = self.queries - stop  # of the block's last query
        length = keys + (stop - start) - 1
        rows_last_first = self.strip[:, first_place : first_place + length].unfold(-1, keys, 1)
        return rows_last_first.flip(1)

    def allowed(self, start: int, stop: int, keys: int) -> Tensor:
        """Return the causal and visible pairs of a block of queries: ([H,] T block, keys) bool."""
        offset = self.keys - self.queries
        query_index = torch.arange(offset + start, offset + stop, device=self.pos.device)[:, None]
        key_index = torch.arange(keys, device=self.pos.device)
        causal = query_index >= key_index
        if not self.has_visible:
            return causal
        visible = self.encoding.visible(self.query_pos[start:stop], self.pos[:keys], self.layer)
        # every query sees its own key, since the softmax of a row without any is nan
        return causal & (visible | (query_index == key_index))

    def masked_bias(self, start: int, stop: int, keys: int) -> Tensor:
        """Return the bias where a key may be seen, -inf elsewhere: (H or 1, T block, keys) float32."""
        bias = self.bias(start, stop, keys)
        has_causal_mask = self.strip is not None and self.future == float("-inf")
        if has_causal_mask and not self.has_visible:
            return bias
        return bias.masked_fill(~self.allowed(start, stop, keys), float("-inf"))


def attend(heads: Heads, x: Tensor, layer: Layer, *, is_rotated: bool = False) -> Tensor:
    """Return the output of every head, (B, H, T, E); x (B, S, d_model) is the layer's normed input.

    With `is_rotated`, q and k have been through the encoding's `rotate` already.
    """
    y = _attended(heads, x, layer, is_rotated=is_rotated)
    if "output" in layer.encoding.hooks:
        y = layer.encoding.output(y, slice_queries(x, y.shape[2]), layer.number)
    return y


def _attended(heads: Heads, x: Tensor, layer: Layer, *, is_rotated: bool) -> Tensor:
    """Return the output of every head before the hook `output`."""
    q, k, v = heads
    encoding, number, pos, _ = layer
    hooks = encoding.hooks
    # If all tokens are queries, q_pos is the very tensor pos: `rotate` sees that by `is` and computes the
    # angles once.
    q_pos = pos if q.shape[2] == len(pos) else pos[-q.shape[2] :]  # (T,)
    if "adjust" in hooks:
        q, k = encoding.adjust(q, k, x, q_pos, pos, number)
    state = encoding.prepare(x, q, k, number) if "prepare" in hooks else None
    scale = q.shape[-1] ** -0.5  # of the head width, before `rotate` may widen it
    if "rotate" in hooks and not is_rotated:
        q, k = encoding.rotate(q, k, q_pos, pos, number)
    kernel = choose_kernel(Heads(q, k, v), layer)
    if kernel == "blocks":
        return _blockwise(Heads(q, k, v), layer, state, scale)
    heads = Heads(q, k.expand(-1, q.shape[1], -1, -1), v)
    if kernel == "causal":
        return _causal(heads, scale)
    if kernel == "masked":
        return _masked(heads, layer, scale)
    from posenc.model.flex import attend_flex  # here, since it takes a second to import

    return attend_flex(heads, layer, scale, state)


def fused_mask(encoding: Encoding, layer: int, queries: int, pos: Tensor) -> BlockMask | None:
    """Return the mask of a layer that FlexAttention will compute on this device; None for other kernels."""
    keys = len(pos)
    changed_by = {"bias", "distance_bias", "visible", "scores", "weights", "values"}
    is_plain = encoding.hooks.isdisjoint(changed_by)
    if not pos.is_cuda or is_plain or keys < _limits.flex_from:
        return None
    from posenc.model.flex import block_mask, masking, serves  # here, since it takes a second to import

    if not serves(encoding, queries, keys, pos.device):
        return None
    return block_mask(masking(encoding), layer, queries, keys, pos.device)


def choose_kernel(heads: Heads, layer: Layer) -> str:
    """Name the kernel for these tensors and hooks: `causal`, `masked`, `flex` (all fused) or `blocks`."""
    q, k, v = heads
    hooks = layer.encoding.hooks
    queries = q.shape[2]
    keys = k.shape[2]
    # The causal kernel takes scores as they are, so a sink counts as a bias.
    is_biased = not hooks.isdisjoint({"bias", "distance_bias", "visible", "sink"})
    if layer.mask is not None and min(q.shape[-1], v.shape[-1]) >= LEAST_FLEX_WIDTH:
        return "flex"
    if hooks_on_scores(layer.encoding):
        return "blocks"
    if q.is_cuda:
        return "blocks" if is_biased else "causal"
    if q.shape[-1] != v.shape[-1]:  # a CPU's fused kernel has no code for two widths
        return "blocks"
    if not is_biased and queries == keys and keys >= _limits.causal_from:
        return "causal"
    if not torch.is_grad_enabled() and keys >= _limits.masked_from and v.dtype == torch.float32:
        return "masked"
    return "blocks"


def _causal(heads: Heads, scale: float) -> Tensor:
    """Run the fused kernel with a causal mask alone."""
    q, k, v = heads
    queries = q.shape[2]
    keys = k.shape[2]
    if queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    allowed = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)  # (T, S)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)


def _masked(heads: Heads, layer: Layer, scale: float) -> Tensor:
    """Run the fused kernel in blocks of queries, with bias and mask as one float32 tensor."""
    q, k, v = heads
    queries = q.shape[2]
    keys = k.shape[2]
    bias_and_mask = BiasAndMask(layer, queries)
    outputs: list[Tensor] = []
    most_queries = _limits.mask_entries // (q.shape[1] * keys)  # whose masks fit into `mask_entries`
    size = max(1, min(_limits.masked_queries, most_queries))
    sink = layer.encoding.sink(layer.number) if "sink" in layer.encoding.hooks else None
    if sink is not None:
        # One more key, the first one, is all zeros like its value; its score comes by the bias.
        k = F.pad(k, (0, 0, 1, 0))
        v = F.pad(v, (0, 0, 1, 0))
    n_sinks = 0 if sink is None else 1
    for start in reversed(range(0, queries, size)):
        stop = min(start + size, queries)
        seen = keys - queries + stop  # keys up to the block's last query
        bias = bias_and_mask.masked_bias(start, stop, seen)  # (H or 1, T block, keys)
        if sink is not None:
            of_sink = sink[:, None, None].expand(-1, stop - start, 1)
            bias = torch.cat((of_sink, bias.expand(len(sink), -1, -1)), dim=-1)
        outputs.append(
            F.scaled_dot_product_attention(
                slice_tokens(q, start, stop),
                slice_tokens(k, 0, n_sinks + seen),
                slice_tokens(v, 0, n_sinks + seen),
                attn_mask=bias[None],
                scale=scale,
            )
        )
    return _joined(outputs)


def _blockwise(heads: Heads, layer: Layer, state: object, scale: float) -> Tensor:
    """Apply every hook, in blocks of queries; a block's scores are float32 once their product is made."""
    q, k, v = heads
    encoding, number, pos, _ = layer
    keys = k.shape[2]
    queries = q.shape[2]
    bias_and_mask = BiasAndMask(layer, queries)
    if not hooks_on_scores(encoding):
        sink = encoding.sink(number) if "sink" in encoding.hooks else None
        # a mask alone is exact in any dtype; a bias is not
        is_exact = not bias_and_mask.has_bias and sink is None
        dtype = v.dtype if is_exact else torch.promote_types(v.dtype, torch.float32)

        def bias_of(block: QueryBlock) -> Tensor:
            return bias_and_mask.masked_bias(block.start, block.stop, block.keys).to(dtype)

        blocks = _blocks(q, keys, dtype)
        scoring = Scoring(scale, bias_of, bias_and_mask.may_have_gradient, sink)
        return softmax_attention(q, k, v, blocks, scoring)
    outputs: list[Tensor] = []
    for start, stop, padded in _blocks(q, keys, torch.float32):
        # Hooks get the keys up to the block's last query. Products get some more, see `block_sizes`.
        seen = keys - queries + stop
        q_block = slice_tokens(q, start, stop)
        q_pos = pos[keys - queries + start : seen]
        k_pos = pos[:seen]
        product = q_block @ slice_tokens(k, 0, padded).transpose(-1, -2)
        s = product[..., :seen].float() * scale  # (B, H, T block, seen)
        s = s + bias_and_mask.bias(start, stop, seen)
        s = encoding.scores(s, q_block, slice_tokens(k, 0, seen), q_pos, k_pos, state, number)
        p = encoding.weights(s, bias_and_mask.allowed(start, stop, seen), number).to(v.dtype)
        if "values" in encoding.hooks:
            outputs.append(encoding.values(p, slice_tokens(v, 0, seen), q_pos, k_pos, number))
        else:
            p = p if padded == seen else F.pad(p, (0, padded - seen))
            outputs.append(p @ slice_tokens(v, 0, padded))
    return _joined(outputs)


def _blocks(q: Tensor, keys: int, dtype: torch.dtype) -> list[QueryBlock]:
    """Cut queries q (B, H, T, D) with scores in `dtype` into blocks of few sizes, the last one first.

    The last block sees the most keys, so all others fit into the memory that it frees. In the other order
    every block would need a little more than was freed: 760 MB instead of 500 at 4096 keys (bf16, glibc).
    """
    batch, heads, queries, _ = q.shape
    max_scores = _limits.max_scores_gpu if q.is_cuda else _limits.max_scores  # of float32
    if dtype.itemsize < 4:
        max_scores *= 4 // dtype.itemsize
    size = max(1, min(queries, max_scores // (batch * heads * keys)))
    # The number of keys is rounded up to a multiple of `step` queries, so that at most `block_sizes` differ.
    n_blocks = math.ceil(queries / size)
    step = size * math.ceil(n_blocks / _limits.block_sizes)
    blocks: list[QueryBlock] = []
    for start in reversed(range(0, queries, size)):
        stop = min(start + size, queries)
        rounded_stop = min(queries, math.ceil(stop / step) * step)
        blocks.append(QueryBlock(start, stop, keys - queries + rounded_stop))
    return blocks


def _joined(outputs: Sequence[Tensor]) -> Tensor:
    """Join the outputs of blocks, the last one first, to (B, H, T, E)."""
    return outputs[0] if len(outputs) == 1 else torch.cat(list(reversed(outputs)), dim=2)


def slice_queries(x: Tensor, queries: int) -> Tensor:
    """Return the last tokens of x (B, S, d_model), those of the queries; x itself if these are all."""
    return x if x.shape[1] == queries else x[:, -queries:]


def slice_tokens(x: Tensor, start: int, stop: int) -> Tensor:
    """Slice x (B, H, T, D) along T; return x itself for all of it: the gradient of a slice is a copy."""
    return x if start == 0 and stop == x.shape[2] else x[:, :, start:stop]
