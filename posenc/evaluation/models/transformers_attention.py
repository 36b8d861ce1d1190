"""Compute the attention of a model of transformers, with an extension that acts inside it.

transformers gives an attention function rotated queries and keys. Extensions that change distances need them
unrotated. For these the model's own rotation is stopped, and posenc rotates here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.extensions.redistanced import Redistanced
from posenc.model.kernels import join_blocks, query_blocks

ATTENTION_HOOKS = {"scores", "visible"}  # hooks that need another attention function
# Tensors that transformers may pass to an attention function. Positions always are 0, 1, 2, ... here.
KNOWN_TENSORS = {"s_aux", "position_ids", "cache_position"}


@dataclass(frozen=True)
class ScoreOptions:
    """How a layer of the model makes scores from products of queries and keys."""

    layer: int  # its index
    scale: float  # of the products
    softcap: float | None  # the scores s become c tanh(s / c)
    sinks: Tensor | None  # (H,), the score of one more key that has no value


def score_options(module: nn.Module, q: Tensor, k: Tensor, options: Mapping[str, Any]) -> ScoreOptions:
    """Return the options of a layer, from what transformers passes to its attention function.

    Raises NotApplicableError for what `attention` would ignore: tensors that posenc does not know, such as a
    choice of keys, and keys that are not one a token.
    """
    for name, value in options.items():
        if isinstance(value, Tensor) and name not in KNOWN_TENSORS:
            raise NotApplicableError(f"n/a: the attention of this architecture takes {name}")
    # Hooks take the position of a key to be its index, which is wrong for merged or kept keys.
    if k.shape[2] != q.shape[2]:
        raise NotApplicableError("n/a: the keys of this architecture are not one a token")
    scaling = options.get("scaling")
    return ScoreOptions(
        # Some architectures do not number their layers. Then the extension acts alike in all of them.
        layer=getattr(module, "layer_idx", None) or 0,
        scale=q.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
    )


@dataclass(frozen=True)
class AttentionParts:
    """The parts of an encoding that act inside the attention, in their order."""

    rotating: Sequence[Encoding]  # at most one; empty: the model has rotated queries and keys itself
    redistanced: Sequence[Redistanced]
    acting: Sequence[Encoding]  # all others that change scores or hide keys

    @classmethod
    def of(cls, parts: Sequence[Encoding]) -> AttentionParts:
        """Choose those of the parts of an encoding that act inside the attention."""
        redistanced = [part for part in parts if isinstance(part, Redistanced)]
        rotating = [part for part in parts if redistanced and "rotate" in part.hooks]
        acting = []
        for part in parts:
            if not isinstance(part, Redistanced) and part.hooks & ATTENTION_HOOKS:
                acting.append(part)
        return cls(rotating, redistanced, acting)

    @property
    def hide_keys(self) -> bool:
        """Tell whether any part hides earlier keys from a query."""
        return any("visible" in part.hooks for part in self.acting)

    def __bool__(self) -> bool:
        """Tell whether there is any, so that the model's attention function must be replaced."""
        return bool(self.redistanced or self.acting)


def changes_distances(parts: Sequence[Encoding]) -> bool:
    """Tell whether the parts of an extension need queries and keys before their rotation."""
    return any(isinstance(part, Redistanced) for part in parts)


def attention(
    parts: AttentionParts, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: ScoreOptions
) -> Tensor:
    """Return softmax(scores) v, (B, S, H, D) as transformers wants it, with the parts' hooks.

    q (B, H, S, D); k and v (B, KV, S, D), where each of KV heads serves H/KV heads of queries; mask (B, 1 or
    H, S, S): where a query may see a key, or numbers to add to scores. None: it sees all earlier tokens.
    """
    length = q.shape[2]
    # Hooks and biases have one set of keys a head, so shared keys are repeated before them.
    heads_a_key_head = q.shape[1] // k.shape[1]
    k = k.repeat_interleave(heads_a_key_head, 1)  # (B, H, S, D)
    v = v.repeat_interleave(heads_a_key_head, 1)  # (B, H, S, D)
    pos = torch.arange(length, device=q.device)
    # Redistanced multiplies its products by D^-1/2, but this layer may have another scale. The first argument
    # of `prepare` is the layer's input, which transformers does not pass on; Redistanced does not use it.
    q_scaled = q * (options.scale * q.shape[-1] ** 0.5)
    states = [part.prepare(q, q_scaled, k, options.layer) for part in parts.redistanced]
    for part in parts.rotating:
        q, k = part.rotate(q, k, pos, pos, options.layer)
    # Queries go in blocks, since the scores of a long text with itself would not fit into memory. The block
    # with the most keys comes first, so that one rotation to new positions serves all blocks.
    outputs: list[Tensor] = []
    for start, stop, padded in query_blocks(q, length, torch.float32):
        # Hooks get the keys up to the block's last query. Matrix products get some more, `padded`.
        q_pos = pos[start:stop]
        k_pos = pos[:stop]
        product = q[:, :, start:stop] @ k[:, :, :padded].mT  # (B, H, queries, padded)
        s = product[..., :stop].float().mul_(options.scale)  # (B, H, queries, keys)
        for part, state in zip(parts.redistanced, states, strict=True):
            s = part.scores(s, q, k, q_pos, k_pos, state, options.layer)
        # Before temperatures and masks, in the order of transformers' own attention (Gemma 2).
        if options.softcap is not None:
            s = torch.tanh(s / options.softcap) * options.softcap
        for part in parts.acting:
            if "scores" in part.hooks:
                s = part.scores(s, q, k, q_pos, k_pos, None, options.layer)
        # Where nothing hides earlier keys, only those of the block itself can be later than a query. Touching
        # no others takes 0.8 times as long (9 heads, 8192 keys, one core).
        first_key = 0 if mask is not None or parts.hide_keys else start
        allowed = _allowed(parts.acting, q_pos, k_pos[first_key:], options.layer)
        if mask is not None:
            mask_of_block = mask[:, :, start:stop, :stop]  # (B, 1 or H, queries, keys)
            if mask.dtype == torch.bool:
                allowed = allowed & mask_of_block
            else:  # some architectures make a bias of it
                # Such a bias is added after the cap, as in transformers' own attention.
                s = s + mask_of_block
        s[..., first_key:].masked_fill_(~allowed, float("-inf"))
        p = _softmax(s, options.sinks).to(v.dtype)
        # The keys beyond the block's last query get the weight 0, so that their values do not count.
        p = p if padded == stop else F.pad(p, (0, padded - stop))
        outputs.append(p @ v[:, :, :padded])  # (B, H, queries, D)
    return join_blocks(outputs).transpose(1, 2)


def _allowed(acting: Sequence[Encoding], q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
    """Return which keys each query may see, (queries, keys) bool: no later ones, none that a part hides."""
    allowed = q_pos[:, None] >= k_pos
    for part in acting:
        if "visible" in part.hooks:
            allowed = allowed & part.visible(q_pos, k_pos, layer)
    return allowed


def _softmax(s: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the softmax of scores (B, H, T, S) with a further key, whose score is the head's sink (H,).

    The weight on that key is left out.
    """
    if sinks is None:
        return s.softmax(-1)
    sink_scores = sinks.float().view(1, -1, 1, 1).expand(*s.shape[:-1], 1)  # (B, H, T, 1)
    return torch.cat((s, sink_scores), dim=-1).softmax(-1)[..., :-1]
