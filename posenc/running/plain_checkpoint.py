"""Read what a dry run needs of a checkpoint without transformers.

Importing transformers and reading a configuration and a tokenizer with it takes as long as all else of a dry
run. Here config.json is read as plain JSON, and tokenizer.json by the library `tokenizers`. That is done for
architectures of `PLAIN_TYPES` alone, and only if config.json states everything that is needed. Otherwise a
class of transformers would fill in what is missing, so the caller has to ask transformers.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError
from posenc.core.paths import expanded, is_file
from posenc.data import build_tokenizer, stored_tokenizer
from posenc.running.hf_checkpoint import Access, HfCheckpoint, check_config, check_path

# Architectures whose classes fill in nothing but the keys of STATED. A test compares each with its class.
PLAIN_TYPES = ("llama", "mistral", "qwen2", "olmo", "olmo2", "starcoder2", "granite")
STATED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
# With one of these, transformers does more than reading the configuration.
SPECIAL = (
    "quantization_config",
    "auto_map",
    "text_config",
    "rope_scaling",
    "partial_rotary_factor",
    "attn_implementation",
    "output_attentions",
)


class PlainConfig:
    """Hold the values of a config.json under the names that transformers gives them."""

    def __init__(self, values: Mapping[str, Any], rotation: Mapping[str, Any]) -> None:
        # A file may name a key like a method, which the method must outlive.
        self.__dict__.update({key: value for key, value in values.items() if not hasattr(type(self), key)})
        # The second name is that of transformers before version 5.
        self.dtype = values.get("dtype") or values.get("torch_dtype")
        self.rope_parameters = dict(rotation)

    def get_text_config(self) -> PlainConfig:
        """Return the configuration of the language model, which is all there is."""
        return self


def read_plainly(path: str) -> HfCheckpoint | None:
    """Return the checkpoint in a folder; None if transformers has to read it. Raises UserError."""
    folder = expanded(path)
    check_path(path, folder)
    if importlib.util.find_spec("transformers") is None:  # the caller will say that it is missing
        return None
    config = _plain_config(folder / "config.json")
    tokenizer_file = folder / "tokenizer.json"
    if config is None or not _is_readable(tokenizer_file):
        return None
    check_config(path, config)
    # Names on the hub are left to transformers, which knows its cache: this reads folders alone.
    access = Access(revision="main", trust_remote_code=False, local_files_only=True)
    return HfCheckpoint(path, str(folder), access, config, tokenizer=None, tokenizer_file=tokenizer_file)


def _plain_config(file: Path) -> PlainConfig | None:
    """Return the configuration in a file; None if the file does not state everything."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the last: JSON nested too deep
        return None
    if not isinstance(values, dict) or values.get("model_type") not in PLAIN_TYPES:
        return None
    if any(not _is_size(values.get(key)) for key in STATED):
        return None
    if values["hidden_size"] % values["num_attention_heads"]:  # transformers refuses that in most classes
        return None
    if any(values.get(key) for key in SPECIAL) or not _is_causal(values.get("architectures")):
        return None
    rotation = _unscaled_rotation(values)
    return None if rotation is None else PlainConfig(values, rotation)


def _is_causal(architectures: object) -> bool:
    """Tell whether a configuration names no other class than one of a causal language model."""
    names = architectures or []
    return isinstance(names, list) and all(str(name).endswith("ForCausalLM") for name in names)


def _is_size(value: object) -> bool:
    """Tell whether a value is a whole number from 1. Others are refused, by transformers or in its wake."""
    # In Python True is a whole number, too.
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _unscaled_rotation(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings of a rotation that is not scaled; None for any other, and if no base is stated."""
    before_version_5 = {"rope_type": "default", "rope_theta": values.get("rope_theta")}
    rotation = values.get("rope_parameters") or before_version_5
    if not isinstance(rotation, dict) or rotation.get("rope_type") != "default":
        return None
    base = rotation.get("rope_theta")
    is_number = isinstance(base, Real) and not isinstance(base, bool)
    return rotation if is_number else None


def _is_readable(tokenizer_file: Path) -> bool:
    """Tell whether a file is a tokenizer that the library `tokenizers` reads."""
    if not is_file(tokenizer_file):
        return False
    try:
        build_tokenizer(stored_tokenizer(tokenizer_file), None)
    except UserError:
        return False
    return True
