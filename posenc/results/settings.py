"""What defines a run besides its seed: which runs are seeds of one row, and what tells two rows apart."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from posenc.core.paths import choice_file
from posenc.results.load import Run

# Settings that leave the numbers alone, and those that posenc.results.mixing compares on its own.
NOT_DEFINING = {"seed", "device", "name", "experiment_name", "experiment", "runs_dir", "plugins", "eval"}
NOT_DEFINING |= {"tracking", "hydra", "train.compile", "train.checkpoint_seconds", "train.log_every"}
# Options of any encoding, their word in a row's name, and the value that goes without saying.
OPTIONS = {
    "attention.name": ("attention", "mha"),
    "attention.window": ("window", "null"),
    "attention.scale": ("scale", "none"),
    "positions.name": ("positions", "contiguous"),
}
MIXED = {"model", "data", "tokenizer", "context_length", "train.tokens"}


def settings_of(run: Run) -> dict[str, str]:
    """Flat settings (`encoding.base`: "10000") from config.yaml, or from the facts where there is none."""
    facts = dict(run.facts or {})
    if run.config is not None:
        tree: dict[str, Any] = dict(run.config)
        if not isinstance(tree.get("encoding"), dict) and facts:
            tree["encoding"] = facts["encoding"]
    else:
        tree = {key: facts[key] for key in ("encoding", "attention", "positions") if key in facts}
        if "precision" in facts:
            tree["train"] = {"precision": facts["precision"]}
    skipped = NOT_DEFINING | MIXED | {"encoding.name"}
    flat = flatten(tree)
    return {key: text for key, text in flat.items() if skipped.isdisjoint(_sections(key))}


def size_of(run: Run) -> dict[str, str] | None:
    """Of MIXED what config.yaml says, as flat settings without what a place or a name is; None without it.

    For a run that has no numbers: there is nothing else to tell whether it is a seed of a row.
    """
    if run.config is None:
        return None
    flat = flatten(dict(run.config))
    named = {"data.name", "tokenizer.name", "tokenizer.vocab_size", "context_length", "train.tokens"}
    model = {key for key in flat if key.startswith("model.") and key != "model.name"}
    return {key: flat[key] for key in sorted(named | model) if key in flat}


def encoding_of(run: Run) -> str | None:
    """The encoding's name, where it is known; of a sum the names of its parts."""
    if run.facts is not None:
        return spoken_name(run.facts["encoding"])
    return spoken_name((run.config or {}).get("encoding"))


def spoken_name(encoding: object) -> str | None:
    """`rope`; `alibi+rope` for settings of an encoding that is made of `parts`."""
    if not isinstance(encoding, dict):
        return encoding if isinstance(encoding, str) else None
    parts = encoding.get("parts")
    names = [spoken_name(part) for part in parts] if isinstance(parts, list) else []
    if names and all(names):
        return "+".join(str(name) for name in names)
    name = encoding.get("name")
    return name if isinstance(name, str) else None


def options_of(settings: dict[str, str]) -> list[str]:
    """Words for the options that are not the ordinary ones: `window=16`, `positions=randomized`."""
    return [
        f"{word}={settings[key]}"
        for key, (word, ordinary) in OPTIONS.items()
        if settings.get(key, ordinary) != ordinary
    ]


def of_options(key: str) -> bool:
    """Whether a setting belongs to the groups of options."""
    return key.startswith(("attention.", "positions."))


@functools.cache
def extend_defaults(name: str) -> dict[str, Any]:
    """The knobs of an extension as in its YAML; {} for a name that there is none of."""
    path = choice_file("extend", name)
    if path is None:
        return {}
    import yaml

    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values


def knob_words(extension: Mapping[str, Any]) -> list[str]:
    """Of a record's extension the knobs that are not as in its YAML, and those chosen on validation text."""
    tuned = extension.get("tuned", [])
    usual = flatten(extend_defaults(str(extension["name"])))
    left_out = {"name", "tuned", "tuned_on", "resolved", *tuned}
    given = {
        key: value for key, value in flatten(dict(extension)).items() if _sections(key)[-1] not in left_out
    }
    parts = [f"{key}={value}" for key, value in given.items() if usual.get(key) != value]
    return parts + ([f"(tuned: {', '.join(tuned)})"] if tuned else [])


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted keys; values as text (JSON for what is not text), so that they compare."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = as_text(value)
    return flat


def as_text(value: object) -> str:
    """A value as short text: numbers alike whether written 1000 or 1000.0."""
    if isinstance(value, str):
        return value
    if type(value) is int and -(10**15) < value < 10**15:
        return str(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print very long integers
        return f"{hex(value)[:12]}~"
    return json.dumps(value, sort_keys=True, default=str)


def differing(rows: Sequence[dict[str, str]]) -> list[str]:
    """The keys in which the mappings are not all the same, sorted."""
    keys = sorted({key for row in rows for key in row})
    return [key for key in keys if len({row.get(key) for row in rows}) > 1]


def _sections(key: str) -> list[str]:
    """The key and all that it lies within: `a.b.c`, `a.b`, `a`."""
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
