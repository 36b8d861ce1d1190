"""What a configuration of transformers says of a model: its sizes, its training length, its rotation."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from posenc.core.errors import UserError
from posenc.encodings.base import Shape

GLOBAL_LAYERS = "full_attention"  # the name of layers without a window
LOCAL_LAYERS = "sliding_attention"  # the name of layers with one
DYNAMIC = "dynamic"  # the rope type whose frequencies depend on the window
LONGROPE = "longrope"  # the rope type with one table up to its original length, and another beyond
SCALED_TYPES = ("linear", DYNAMIC, "yarn", LONGROPE, "llama3")
UNSCALED_KEYS = ("rope_theta", "partial_rotary_factor", "mrope_section")  # settings without a scaling
LENGTH_NAMES = ("max_position_embeddings", "max_seq_len", "seq_length", "n_positions")  # names of T
ORIGINAL_LENGTH = "original_max_position_embeddings"  # the name of T in a rotation that was scaled

RopeSettings = dict[str, Any]


# --- Sizes and lengths


def shape_of(config: Any, train_length: int) -> Shape:
    """Return the sizes of a model, by its configuration."""
    heads = getattr(config, "num_attention_heads", 1)  # Mamba has none
    width = config.hidden_size
    # Gemma's heads have 256 numbers, where its width and number of heads would give 192.
    head_dim = size_in_layers(config, "head_dim") or width // heads
    return Shape(width, heads, head_dim, config.num_hidden_layers, train_length)


def size_in_layers(config: Any, name: str) -> int | None:
    """Return a size in a configuration, or None. If layers differ in it (Gemma 4), it is the largest."""
    layers = config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config]
    sizes = [getattr(layer, name, None) for layer in layers]
    return max((size for size in sizes if size is not None), default=None)


def tokens_kept(config: Any, window: int, chunk_tokens: int) -> int:
    """Return of how many tokens all layers together keep keys and values in a pass by chunks over a window.

    A local layer keeps those that it sees, beside the newest chunk. Without `layer_types` all layers have the
    local window, if there is one.
    """
    seen = local_window(config)
    all_kinds = [GLOBAL_LAYERS if seen is None else LOCAL_LAYERS] * config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or all_kinds
    kept_in_local = window if seen is None else min(seen + chunk_tokens, window)
    return sum(kept_in_local if kind == LOCAL_LAYERS else window for kind in kinds)


def local_window(config: Any) -> int | None:
    """Return how many tokens layers with a local window see; None if no layer has one."""
    window: int | None = getattr(config, "sliding_window", None)
    # Qwen2's config.json states a window that its class drops, unless it says that the window is used. Other
    # classes with this key have dropped the window by now (0 in Qwen2-MoE), and Mistral does not read it.
    is_dropped = config.model_type == "qwen2" and not getattr(config, "use_sliding_window", False)
    kinds = getattr(config, "layer_types", None)
    has_local_layers = kinds is None or LOCAL_LAYERS in kinds
    return window if window and has_local_layers and not is_dropped else None


def window_of_all_layers(config: Any) -> int | None:
    """Return how many tokens each layer sees, if all have a local window; None if one sees the whole text."""
    kinds = getattr(config, "layer_types", None)
    has_global_layers = kinds is not None and any(kind != LOCAL_LAYERS for kind in kinds)
    return None if has_global_layers else local_window(config)


def has_bias_instead(config: Any) -> bool:
    """Tell whether slope times distance replaces the model's rotation (Falcon's setting `alibi`)."""
    with suppress(AttributeError):
        return bool(config.alibi)
    return False


def trained_length(config: Any) -> int:
    """Return T of a configuration: the length before its rotation was scaled, if it was. Raises UserError."""
    # A model of images and text has the settings of its language model in a part of its own.
    config = config.get_text_config()
    # First the length before scaling: `max_position_embeddings` of such a model is the length after it.
    candidates = [settings.get(ORIGINAL_LENGTH) for settings in rope_settings(config)]
    candidates.append(getattr(config, ORIGINAL_LENGTH, None))
    if not has_bias_instead(config):  # the length in Falcon's configuration is a default, not T
        candidates += [getattr(config, name, None) for name in LENGTH_NAMES]
    lengths = [int(length) for length in candidates if length]
    if not lengths:
        hint = "context_length=2048, or what the model was trained at"
        raise UserError("context_length", "auto", "this model's configuration does not say it", hint=hint)
    # The first and not the shortest, since a model may have several of these names for different things.
    return lengths[0]


# --- The rotation


@dataclass(frozen=True)
class ScaledLengths:
    """The training length of a model before and after its rotation was scaled, in tokens."""

    before: int
    after: int


def rope_settings(config: Any) -> list[RopeSettings]:
    """Return the settings of the rotation: one for all layers, or one for each kind of layer."""
    # Models without a rotation have no such setting, and some have it as None.
    parameters = getattr(config, "rope_parameters", None) or {}
    by_kind_of_layer = [value for value in parameters.values() if isinstance(value, dict)]
    if by_kind_of_layer:
        return by_kind_of_layer
    return [parameters] if parameters else []


def scaled_types(config: Any) -> list[str]:
    """Return the rope types of a configuration that scale frequencies, each once."""
    types = [str(settings.get("rope_type")) for settings in rope_settings(config)]
    return [name for name in dict.fromkeys(types) if name in SCALED_TYPES]


def scaled_lengths(settings: RopeSettings, config: Any) -> ScaledLengths | None:
    """Return the training length before and after scaling; None if the settings do not say both.

    `linear` and `dynamic` do not: max_position_embeddings is the length before in some models, and the length
    after in others.
    """
    original_length = settings.get(ORIGINAL_LENGTH)
    if settings.get("rope_type") not in SCALED_TYPES or original_length is None:
        return None
    scaled_length = config.max_position_embeddings
    if scaled_length <= original_length:
        # Qwen's documentation says to add a scaling, but not to raise this number.
        scaled_length = round(original_length * (settings.get("factor") or 1))
    return ScaledLengths(original_length, scaled_length) if scaled_length > original_length else None


def without_scaling(config: Any) -> Any:
    """Return a copy of a configuration without the scaling of its rotation, in all layers."""
    # The settings of the rotation are dictionaries, which a shallow copy would share with the model.
    copied = copy.deepcopy(config)
    # This is a part of the copy and no further copy, so what is set in it holds for the whole.
    text_config = copied.get_text_config()
    parameters = text_config.rope_parameters
    is_by_kind = any(isinstance(value, dict) for value in parameters.values())
    if is_by_kind:
        text_config.rope_parameters = {kind: _unscaled(settings) for kind, settings in parameters.items()}
    else:
        text_config.rope_parameters = _unscaled(parameters)
    return copied


def _unscaled(settings: RopeSettings | None) -> RopeSettings | None:
    """Return the settings of one rotation without its scaling. None stands for layers without a rotation."""
    if settings is None or settings["rope_type"] not in SCALED_TYPES:
        return settings
    unscaled = {key: settings[key] for key in UNSCALED_KEYS if key in settings}
    # Keys of the old type are dropped: transformers warns of keys that a rope type does not know.
    return {"rope_type": "default", **unscaled}
