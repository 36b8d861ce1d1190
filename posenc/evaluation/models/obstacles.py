"""Tell why an extension cannot act in a model of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posenc.encodings.base import Encoding
from posenc.evaluation.extensions import Extension, leaves
from posenc.evaluation.extensions.redistanced import Redistanced
from posenc.evaluation.models.configurations import LONGROPE, window_of_all_layers
from posenc.evaluation.models.rotations import ModelRotation, Obstacle
from posenc.evaluation.models.transformers_attention import AttentionParts, changes_distances

USABLE_HOOKS = {"rotate", "scores", "visible"}  # hooks of an extension that can act in transformers
# Architectures in which posenc can rotate in the model's place. A test of each says that it rotates in all
# layers, after all other changes to queries and keys, and turns number i of a head with number i + D'/2.
# Others turn neighbours (Cohere, GLM) or leave out layers (SmolLM3, Llama 4).
KNOWN_ATTENTIONS = (
    *("apertus", "arcee", "bitnet", "gemma", "gemma2", "gemma3_text", "gpt_neox", "gpt_oss", "granite"),
    *("llama", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmo3", "phi", "phi3", "qwen2"),
    *("qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "starcoder2"),
)
# Settings of architectures whose layers choose the keys that each query sees, or make one key of several
# tokens. Each tells its attention function in its own way, which posenc's cannot follow.
SETTINGS_OF_CHOSEN_KEYS = ("index_topk", "index_topk_blocks", "indexer_budget", "compress_rates")


def obstacle_in_attention(model: Any, extension: Extension, parts: Sequence[Encoding]) -> Obstacle | None:
    """Return why the parts of an extension cannot act in the attention; None if nothing prevents it."""
    config = model.config.get_text_config()
    # Redistanced declares `prepare` as well, which posenc's attention function calls itself.
    parts_by_hooks = [part for part in parts if not isinstance(part, Redistanced)]
    if any(part.hooks - USABLE_HOOKS for part in parts_by_hooks):
        return Obstacle("it acts where transformers lets nothing in")
    if AttentionParts.of(parts) and not getattr(model, "_supports_attention_backend", False):
        return Obstacle("transformers lets nothing into the attention of this architecture")
    if AttentionParts.of(parts) and any(hasattr(config, name) for name in SETTINGS_OF_CHOSEN_KEYS):
        return Obstacle("the layers of this architecture choose which keys a query sees")
    if changes_distances(parts) and config.model_type not in KNOWN_ATTENTIONS:
        reason = "it needs queries and keys before their rotation, out of reach in this architecture"
        return Obstacle(reason, f"extend=yarn, pi, ...; {extension.name} acts in llama, qwen3, phi3, ...")
    return None


def obstacle_in_windows(config: Any, train_length: int) -> Obstacle | None:
    """Return that local windows of all layers keep each distance within T; None if one layer sees more."""
    window = window_of_all_layers(config)
    if window is None or window > train_length:
        return None
    return Obstacle(f"all its layers see {window} tokens only, so that no distance is new beyond T")


def obstacle_in_rotation(
    rotation: ModelRotation, module: Any, extension: Extension, parts: Sequence[Encoding], train_length: int
) -> Obstacle | None:
    """Return why the parts of an extension cannot change the rotation of `module`; None if they can."""
    if not rotation.follows_tables(module):
        return Obstacle("its rotation makes its frequencies anew in each pass")
    if rotation.scaled_lengths is None:
        return None
    rope_type = rotation.rope_type
    original_length = rotation.scaled_lengths.before
    scaled_length = rotation.scaled_lengths.after
    # An extension may act beyond the scaling or in its place. Only the user knows which is meant.
    if train_length <= original_length:
        lengths = f"from {original_length} to {scaled_length} tokens"
        reason = f"its rotation is scaled already ({rope_type}), {lengths}"
        beyond_scaling = f"context_length={scaled_length}: from there on"
        hint = f"{beyond_scaling}; subject.rope_scaling=false: without its scaling"
        return Obstacle(reason, hint)
    parts_within = leaves(extension.effective_encoding(original_length))
    # Up to that length the model turns by its short table, but posenc would turn by the long one.
    if rope_type == LONGROPE and changes_distances(parts_within):
        reason = f"its frequencies up to {original_length} tokens are others than beyond ({rope_type})"
        return Obstacle(reason)
    return None
