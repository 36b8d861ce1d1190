"""Make a pass of a model of transformers a part of the window at a time.

The keys and values of earlier parts are kept, so that the numbers are those of a whole pass wherever
`why_not_in_chunks` returns None.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.evaluation.models.configurations import (
    DYNAMIC,
    GLOBAL_LAYERS,
    LOCAL_LAYERS,
    LONGROPE,
    scaled_types,
)
from posenc.evaluation.models.hidden_states import has_decoder, without_past
from posenc.evaluation.models.layer_progress import LayerProgress
from posenc.evaluation.models.transformers_attention import AttentionParts

CHUNKS_TOLERANCE = 0.3  # of the spread of logits; in bf16 and eight bits other products round differently
OTHER_IN_CHUNKS = ("moshi",)  # beyond its local window; a short text in chunks does not show it


def why_not_in_chunks(model: Any, parts: Sequence[Encoding], *, rotates: bool) -> str | None:
    """Return why passes in chunks would give other numbers with these parts; None if they do not.

    `parts` are those of the encoding that acts, and `rotates` says whether the model uses its rotations. Only
    modules and configuration are looked at, so that an outline of the model is enough.
    """
    config = model.config.get_text_config()
    parameters = inspect.signature(type(model.base_model).forward).parameters
    other_layers = set(getattr(config, "layer_types", None) or ()) - {GLOBAL_LAYERS, LOCAL_LAYERS}
    # Mamba and its relatives carry a state that is no list of keys and values.
    is_stateful = getattr(model, "_is_stateful", False) or bool(other_layers)
    by_window = [name for name in scaled_types(config) if name in (DYNAMIC, LONGROPE)]
    if not has_decoder(model):
        return f"{config.model_type} has no part that returns hidden states"
    if config.model_type in OTHER_IN_CHUNKS:
        return f"{config.model_type} sees other tokens of earlier chunks than of a whole pass"
    if "past_key_values" not in parameters or is_stateful:
        return f"{config.model_type} keeps another state than keys and values of earlier tokens"
    if by_window and rotates:
        return f"its rotation is {by_window[0]}: its frequencies depend on the length of the whole text"
    if AttentionParts.of(parts):
        return "the extension acts in the attention, which posenc computes over whole windows"
    return None


@dataclass(frozen=True)
class ChunkedPass:
    """What is left of a pass that was made in chunks."""

    output: Any  # of the last chunk, without keys and values
    hidden: Tensor  # (B, n, d), of the targets; those of other tokens are dropped with their chunk


def pass_in_chunks(
    decoder: Any, inputs: Tensor, n_targets: int, chunk_tokens: int, progress: LayerProgress
) -> ChunkedPass:
    """Make a pass over inputs (B, W), so many tokens of each window at a time."""
    length = inputs.shape[1]
    first_target = length - n_targets
    past = None
    hidden_of_chunks = []
    for start in range(0, length, chunk_tokens):
        chunk = inputs[:, start : start + chunk_tokens]
        with progress.reported(before=start / length, size=chunk.shape[1] / length):
            output = decoder(chunk, past_key_values=past, use_cache=True)
        past = output.past_key_values
        n_before_targets = max(first_target - start, 0)
        if n_before_targets < chunk.shape[1]:  # an empty slice would keep the whole chunk in memory
            hidden_of_chunks.append(output.last_hidden_state[:, n_before_targets:])
    return ChunkedPass(without_past(output), torch.cat(hidden_of_chunks, dim=1))
