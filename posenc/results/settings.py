"""What defines a run besides its seed: which runs are seeds of one row, and what tells two rows apart."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from posenc.core.paths import choice_file
from posenc.results.run import Run

# Settings that leave the numbers alone, and those that posenc.results.selection compares on its own.
NOT_DEFINING = {"seed", "device", "name", "experiment_name", "experiment", "runs_dir", "plugins", "eval"}
NOT_DEFINING |= {"tracking", "hydra", "train.compile", "train.checkpoint_seconds", "train.log_every"}
MIXED = {"model", "data", "tokenizer", "context_length", "train.tokens"}
SKIPPED = NOT_DEFINING | MIXED | {"encoding.name"}
SIZE = {"data.name", "tokenizer.name", "tokenizer.vocab_size", "context_length", "train.tokens"}
# Options of any encoding, their word in a row's name, and the default, which is not named.
OPTIONS = {
    "attention.name": ("attention", "mha"),
    "attention.window": ("window", "null"),
    "attention.scale": ("scale", "none"),
    "positions.name": ("positions", "contiguous"),
}


def settings_of(run: Run) -> dict[str, str]:
    """Return flat settings (`encoding.base`: "10000") from config.yaml, or from the facts without one."""
    facts = dict(run.facts or {})
    if run.config is not None:
        tree: dict[str, Any] = dict(run.config)
        if not isinstance(tree.get("encoding"), dict) and facts:
            tree["encoding"] = facts["encoding"]
    else:
        tree = {key: facts[key] for key in ("encoding", "attention", "positions") if key in facts}
        if "precision" in facts:
            tree["train"] = {"precision": facts["precision"]}
    tree = {key: value for key, value in tree.items() if key not in SKIPPED}
    return {key: text for key, text in flatten(tree).items() if SKIPPED.isdisjoint(_sections(key))}


def size_of(run: Run) -> dict[str, str] | None:
    """Return what config.yaml says of MIXED, as flat settings without places and names; None without it.

    For a run without numbers nothing else tells whether it is a seed of a row.
    """
    if run.config is None:
        return None
    flat = flatten(run.config)
    model = {key for key in flat if key.startswith("model.") and key != "model.name"}
    return {key: flat[key] for key in sorted(SIZE | model) if key in flat}


def encoding_of(run: Run) -> str | None:
    """Return the encoding's name, where it is known; of a sum the names of its parts."""
    return spoken_name((run.facts or run.config or {}).get("encoding"))


def spoken_name(encoding: object) -> str | None:
    """Return `rope`; `alibi+rope` for settings of an encoding that has `parts`."""
    if not isinstance(encoding, dict):
        return encoding if isinstance(encoding, str) else None
    parts = encoding.get("parts")
    names = [spoken_name(part) for part in parts] if isinstance(parts, list) else []
    if names and all(names):
        return "+".join(str(name) for name in names)
    name = encoding.get("name")
    return name if isinstance(name, str) else None


def options_of(settings: Mapping[str, str]) -> list[str]:
    """Return words for the options that are not at their default: `window=16`, `positions=randomized`."""
    return [
        f"{word}={settings[key]}"
        for key, (word, default) in OPTIONS.items()
        if settings.get(key, default) != default
    ]


def is_option(key: str) -> bool:
    """Return whether a setting belongs to the groups of options."""
    return key.startswith(("attention.", "positions."))


def knob_words(extension: Mapping[str, Any]) -> list[str]:
    """Return a record's extension knobs that differ from its YAML, and the names of those that were tuned."""
    tuned = extension.get("tuned", [])
    usual = flatten(_extension_defaults(str(extension["name"])))
    left_out = {"name", "tuned", "tuned_on", "resolved", *tuned}
    given = {key: text for key, text in flatten(extension).items() if key.split(".")[0] not in left_out}
    parts = [f"{key}={value}" for key, value in given.items() if usual.get(key) != value]
    return parts + ([f"(tuned: {', '.join(tuned)})"] if tuned else [])


@functools.cache
def _extension_defaults(name: str) -> dict[str, Any]:
    path = choice_file("extend", name)
    if path is None:
        return {}
    import yaml

    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested mappings as dotted keys with comparable text values (JSON for what is not text)."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = as_text(value)
    return flat


def as_text(value: object) -> str:
    """Return a value as short text: numbers alike whether written 1000 or 1000.0."""
    if isinstance(value, str):
        return value
    if type(value) is int and -(10**15) < value < 10**15:
        return str(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print very long integers
        return f"{hex(value)[:12]}~"
    return json.dumps(value, sort_keys=True, default=str)


def differing(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys in which the mappings are not all the same, sorted."""
    if not rows:
        return []
    first, unlike = rows[0], set[str]()
    for row in rows[1:]:
        if row != first:
            unlike |= {key for key, _ in row.items() ^ first.items()}
    return sorted(unlike)


def _sections(key: str) -> list[str]:
    """Return the key and all that it lies within: `a.b.c`, `a.b`, `a`."""
    parts = key.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
