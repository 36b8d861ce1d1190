"""Compute the attention of a model of transformers, with an extension that acts inside of it.

transformers gives an attention function queries and keys after their rotation. Extensions that change
distances need them before it: for these the model's own rotation is stopped, and posenc rotates here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding
from posenc.evaluation.extensions.redistanced import Redistanced

ATTENTION_HOOKS = {"scores", "visible"}  # hooks that need another attention function
QUERY_BLOCK = 512  # queries that the attention function handles at once


@dataclass(frozen=True)
class ScoreOptions:
    """Say how one layer of the model makes scores from products of queries and keys."""

    layer: int
    scale: float
    softcap: float | None  # the scores s become c tanh(s / c)
    sinks: Tensor | None  # (H,), the score of one more key that has no value


def score_options(module: nn.Module, head_dim: int, options: Mapping[str, Any]) -> ScoreOptions:
    """Return the options of a layer, from what transformers passes to its attention function."""
    scaling = options.get("scaling")
    return ScoreOptions(
        layer=getattr(module, "layer_idx", None) or 0,
        scale=head_dim**-0.5 if scaling is None else scaling,
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
    )


@dataclass(frozen=True)
class AttentionParts:
    """Hold the parts of an encoding that act inside of the attention, in their order."""

    rotating: Sequence[Encoding]  # one at most; empty: queries and keys are rotated already
    redistanced: Sequence[Redistanced]
    acting: Sequence[Encoding]  # all others that change scores or what is seen

    @classmethod
    def of(cls, parts: Sequence[Encoding]) -> AttentionParts:
        """Choose among the parts of an encoding."""
        redistanced = [part for part in parts if isinstance(part, Redistanced)]
        rotating = [part for part in parts if redistanced and "rotate" in part.hooks]
        others = [part for part in parts if not isinstance(part, Redistanced)]
        return cls(rotating, redistanced, [part for part in others if part.hooks & ATTENTION_HOOKS])

    def __bool__(self) -> bool:
        """Tell whether there is any."""
        return bool(self.redistanced or self.acting)


def attention(
    parts: AttentionParts, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: ScoreOptions
) -> Tensor:
    """Return softmax(scores + mask) v as transformers wants it, (B, S, H, D), with the parts' hooks.

    q (B, H, S, D); k and v (B, KV, S, D), each head of which serves H/KV heads of queries; mask (B, 1, S, S).
    """
    length = q.shape[2]
    queries_a_key = q.shape[1] // k.shape[1]  # heads
    k = k.repeat_interleave(queries_a_key, 1)  # (B, H, S, D)
    v = v.repeat_interleave(queries_a_key, 1)  # (B, H, S, D)
    pos = torch.arange(length, device=q.device)
    # These parts multiply their own products by D^-1/2, where this layer may have another scale. The first
    # argument, which they do not use, would be the layer's input: transformers does not show it.
    q_scaled = q * (options.scale * q.shape[-1] ** 0.5)
    states = [part.prepare(q, q_scaled, k, options.layer) for part in parts.redistanced]
    for part in parts.rotating:
        q, k = part.rotate(q, k, pos, pos, options.layer)
    blocks = []
    # the block with most keys comes first: then queries and keys are rotated to new positions only once
    for start in reversed(range(0, length, QUERY_BLOCK)):
        end = min(start + QUERY_BLOCK, length)
        q_pos = pos[start:end]
        k_pos = pos[:end]
        s = (q[:, :, start:end] @ k[:, :, :end].mT).float() * options.scale  # (B, H, queries, keys)
        for part, state in zip(parts.redistanced, states, strict=True):
            s = part.scores(s, q, k, q_pos, k_pos, state, options.layer)
        if options.softcap is not None:
            s = torch.tanh(s / options.softcap) * options.softcap
        allowed = q_pos[:, None] >= k_pos  # (queries, keys)
        for part in parts.acting:
            if "scores" in part.hooks:
                s = part.scores(s, q, k, q_pos, k_pos, None, options.layer)
            if "visible" in part.hooks:
                allowed = allowed & part.visible(q_pos, k_pos, options.layer)
        if mask is not None:
            s = s + mask[:, :, start:end, :end]
        p = _softmax(s.masked_fill(~allowed, float("-inf")), options.sinks).to(v.dtype)
        blocks.append(p @ v[:, :, :end])  # (B, H, queries, D)
    return torch.cat(blocks[::-1], dim=2).transpose(1, 2)


def _softmax(s: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the softmax of scores (B, H, T, S), beside a key whose score is the head's sink (H,)."""
    if sinks is None:
        return s.softmax(-1)
    sink_scores = sinks.float().view(1, -1, 1, 1).expand(*s.shape[:-1], 1)  # (B, H, T, 1)
    return torch.cat((s, sink_scores), dim=-1).softmax(-1)[..., :-1]
