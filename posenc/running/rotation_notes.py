"""Say what users should know about the rotation of a checkpoint: its scaling, and where it is extended."""

from __future__ import annotations

import math
from typing import Any

from posenc.core.errors import plural
from posenc.evaluation.models.configurations import (
    GLOBAL_LAYERS,
    SCALED_TYPES,
    RopeSettings,
    rope_settings,
    scaled_lengths,
)
from posenc.running.hf_checkpoint import HfCheckpoint, outline_of

LABEL = "rotation  "


def notes_on_rotation(checkpoint: HfCheckpoint, *, is_extended: bool) -> tuple[str, ...]:
    """Return lines on a scaled rotation, on its missing temperature, and on layers that are not extended."""
    config = checkpoint.text_config
    notes = []
    for settings in rope_settings(config):
        if settings.get("rope_type") in SCALED_TYPES:
            notes.append(f"{LABEL} {_scaling(settings, config)}")
        if _has_equal_temperatures(settings) and not _scales_logits(checkpoint):
            equal = f"mscale = mscale_all_dim = {settings['mscale']:g}"
            notes.append(f"{LABEL} no temperature: {equal} cancel, and transformers scales no logits here")
    # Local layers see a window, in which no distance is new beyond T (docs/real-models.md).
    if is_extended and len(rope_settings(config)) > 1:
        notes.append(f"{LABEL} {_extended_layers(config)}")
    return tuple(notes)


def _scaling(settings: RopeSettings, config: Any) -> str:
    """Return `scaled already (yarn), from 32 to 128 tokens`."""
    rope_type = settings["rope_type"]
    lengths = scaled_lengths(settings, config)
    if lengths is None:
        return f"scaled already ({rope_type}), by a factor of {settings.get('factor')}"
    return f"scaled already ({rope_type}), from {lengths.before:,} to {lengths.after:,} tokens"


def _extended_layers(config: Any) -> str:
    """Return `extended in 1 global layer, not in 5 local ones`."""
    n_global = config.layer_types.count(GLOBAL_LAYERS)
    n_local = len(config.layer_types) - n_global
    return f"extended in {plural(n_global, 'global layer')}, not in {plural(n_local, 'local one')}"


def _has_equal_temperatures(settings: RopeSettings) -> bool:
    """Tell whether cos and sin are multiplied by the ratio of two equal temperatures, which is 1."""
    if settings.get("rope_type") != "yarn" or settings.get("attention_factor") is not None:
        return False
    mscale = settings.get("mscale")
    return bool(mscale) and mscale == settings.get("mscale_all_dim")


def _scales_logits(checkpoint: HfCheckpoint) -> bool:
    """Tell whether the attention multiplies its logits by more than D^-1/2, as DeepSeek's does by mscale."""
    # The modules are asked, and not the name: DeepSeek multiplies by the
    # temperature, Qwen2 with the same settings does not.
    for module in outline_of(checkpoint).modules():
        head_dim = getattr(module, "qk_head_dim", None) or getattr(module, "head_dim", None)
        scaling = getattr(module, "scaling", None)
        if head_dim is not None and scaling is not None:
            return not math.isclose(scaling, head_dim**-0.5)
    return False
