"""Say where T of a checkpoint is a default of its class, which may not be what the model was trained at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from posenc.evaluation.models.configurations import LENGTH_NAMES, ORIGINAL_LENGTH, trained_length
from posenc.running.hf_checkpoint import HfCheckpoint


def notes_on_trained_length(checkpoint: HfCheckpoint) -> tuple[str, ...]:
    """Return a line if config.json states no length, so that T is a number of transformers."""
    # A configuration that was read without transformers states its length, or it would not have been.
    if checkpoint.is_plain:
        return ()
    config = checkpoint.text_config
    # Some classes have another name for `max_position_embeddings` in the file, such as GPT-J.
    stored_names = [config.attribute_map.get(name, name) for name in LENGTH_NAMES]
    names = {*LENGTH_NAMES, *stored_names, ORIGINAL_LENGTH}
    values, _ = config.get_config_dict(checkpoint.source, **checkpoint.access.arguments())
    if names.intersection(_keys(values)):
        return ()
    length = trained_length(checkpoint.config)
    default = f"T = {length:,} is the default of {type(config).__name__}"
    return (f"length     {default}: config.json states none; set context_length=N if it is another",)


def _keys(values: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of a mapping, and those of the mappings in it."""
    for key, value in values.items():
        yield key
        if isinstance(value, dict):
            yield from _keys(value)
