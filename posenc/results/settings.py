"""Settings of runs: which runs are seeds of one row, what tells two rows apart, and `--where`."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError
from posenc.core.paths import choice_file
from posenc.results.load import Run, encoding_of
from posenc.results.schema import REFERENCE_PROTOCOL, Record, multiple_of, target_set

# Settings that leave the numbers alone, and those that posenc.results.rows compares on its own.
NOT_DEFINING = {"seed", "device", "name", "experiment_name", "experiment", "runs_dir", "plugins", "eval"}
NOT_DEFINING |= {"tracking", "hydra", "train.compile", "train.checkpoint_seconds", "train.log_every"}
NOT_DEFINING |= {"train.init", "train.began.run", "train.tuned"}  # another one for each seed
SKIPPED = NOT_DEFINING | {"model", "data", "tokenizer", "context_length", "train.tokens", "encoding.name"}
INSIDE = tuple(f"{key}." for key in SKIPPED)
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
    return {key: text for key, text in flatten(tree).items() if not f"{key}.".startswith(INSIDE)}


def size_of(run: Run) -> dict[str, str] | None:
    """Return model, corpus and lengths of config.yaml, as flat settings without places; None without it.

    For a run without numbers nothing else tells whether it is a seed of a row.
    """
    if run.config is None:
        return None
    flat = flatten(run.config)
    model = {key for key in flat if key.startswith(("model.", "data.plant.")) and key != "model.name"}
    unused = {key for key in model if flat[key] == "null"}  # which earlier runs do not have
    return {key: flat[key] for key in sorted((SIZE | model) - unused) if key in flat}


def kind_of(run: Run, length: bool = True) -> tuple[str, str]:
    """Return encoding and settings, and the size, as comparable texts; without `length` of any T."""
    size = {key: value for key, value in (size_of(run) or {}).items() if length or key != "context_length"}
    kind = json.dumps([encoding_of(run), settings_of(run)], sort_keys=True)
    return kind, json.dumps(size, sort_keys=True)


def options_of(settings: Mapping[str, str]) -> list[str]:
    """Return words for the options that are not at their default: `window=16`, `positions=randomized`."""
    chosen = {word: (settings.get(key, default), default) for key, (word, default) in OPTIONS.items()}
    return [f"{word}={value}" for word, (value, default) in chosen.items() if value != default]


# Knobs that earlier records do not have, with the value that they stand for.
EARLIER: dict[str, dict[str, Any]] = {
    "ntk_by_parts": {"ramp": "turns"},
    "yarn": {"ramp": "turns", "mscale_all_dim": 1.0},
}


def knob_words(extension: Mapping[str, Any]) -> list[str]:
    """Return a record's extension knobs that differ from its YAML, and the names of those that were tuned."""
    tuned, path = extension.get("tuned", []), choice_file("extend", str(extension["name"]))
    usual = {} if path is None else flatten(own_yaml(path))
    left_out = {"name", "tuned", "tuned_on", "resolved", *tuned}
    extension = {**EARLIER.get(str(extension["name"]), {}), **extension}
    given = {key: text for key, text in flatten(extension).items() if key.split(".")[0] not in left_out}
    parts = [f"{key}={value}" for key, value in given.items() if usual.get(key) != value]
    return parts + ([f"(tuned: {', '.join(tuned)})"] if tuned else [])


@functools.cache
def own_yaml(path: Path) -> dict[str, Any]:
    """Return what one of posenc's YAML files holds."""
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
    if type(value) is int:
        return str(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return json.dumps(value, sort_keys=True, default=str)


def differing(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys in which the mappings are not all the same, sorted."""
    return sorted({key for row in rows[1:] if row != rows[0] for key, _ in row.items() ^ rows[0].items()})


# --- --where


def where(runs: Sequence[Run], conditions: Sequence[str]) -> list[Run]:
    """Return the runs that fulfil every condition: `encoding=rope,al*`, `train.lr!=0.002`.

    A key is one of KEYS or a dotted setting of config.yaml; a group without its field means its name. A run
    without a value fulfils no `=` and every `!=`. One of RECORDS chooses among the records of each run.
    Raises UserError for a malformed condition, a key that no run has, and conditions that none fulfils.
    """
    kept = list(runs)
    for text in conditions:
        found = re.fullmatch(r"([A-Za-z_][\w.]*)(!?=)(.+)", text.strip())
        if found is None:
            allowed = "key=value, key=value,value, key!=value; values may be globs"
            raise UserError("--where", text, "not a condition", allowed=allowed)
        key, sign, asked = found.groups()
        patterns = [one.strip() for one in asked.split(",")]
        if key in RECORDS:
            kept = _with_records(kept, key, patterns, negated=sign == "!=")
            continue
        if runs and all(value_of_key(run, key) is None for run in runs):
            known = sorted({one for run in runs for one in _flat(run)} - {*KEYS, *ALIASES})
            keys = [*KEYS, *ALIASES, *RECORDS, *known]
            raise UserError("--where", key, "no run has this key", allowed=keys)
        values = {id(run): value_of_key(run, key) for run in kept}
        before, kept = kept, [run for run in kept if _fits(values[id(run)], patterns) != (sign == "!=")]
        if before and not kept:
            there = sorted({value for value in values.values() if value is not None})
            raise UserError(f"--where {key}{sign[:-1]}", asked, "no run fulfils it", allowed=there)
    return kept


def _with_records(runs: Sequence[Run], key: str, patterns: Sequence[str], negated: bool) -> list[Run]:
    """Return the runs with just the records that fit, those that have no such value, and the reference's.

    Of a length the whole sets of targets that were measured at it: the longest window decides which targets
    there are, so a longer evaluation is another set.
    """
    values = {RECORDS[key](r) for run in runs for r in run.records} - {None}
    chosen = {value for value in values if _fits(as_text(value), patterns) != negated} | {None}
    if values and len(chosen) == 1:
        there = [*map(as_text, sorted(values))]
        raise UserError(f"--where {key}", ",".join(patterns), "no record is of this", allowed=there)
    kept = []
    for run in runs:
        records = [r for r in run.records if RECORDS[key](r) in chosen]
        if key == "eval.length":
            sets = {(r["protocol"], target_set(r)) for r in records}
            sets |= {(REFERENCE_PROTOCOL, targets) for _, targets in sets}
            records = [r for r in run.records if (r["protocol"], target_set(r)) in sets]
        kept.append(replace(run, records=records))
    return kept


def _fits(value: str | None, patterns: Sequence[str]) -> bool:
    """Return whether it is one of the texts or numbers (1e-3 is 0.001), or fits one of the globs."""
    if value is None:
        return False
    for asked in patterns:
        if value == asked or fnmatch.fnmatchcase(value, asked):
            return True
        with contextlib.suppress(ValueError):
            if float(value) == float(asked.removesuffix("x")):
                return True
    return False


def value_of_key(run: Run, key: str) -> str | None:
    """Return what a run has under a key, as text; None where it has nothing there."""
    if key in KEYS:
        value = KEYS[key](run)
        return None if value is None else as_text(value)
    flat = _flat(run)
    names = (one for name in ALIASES.get(key, (key,)) for one in (name, f"{name}.name"))
    return next((flat[name] for name in names if name in flat), None)


def _flat(run: Run) -> dict[str, str]:
    return flatten(dict(run.facts or {})) | flatten(run.config or {})


KEYS: dict[str, Callable[[Run], Any]] = {
    "encoding": encoding_of,
    "seed": lambda run: run.seed,
    "status": lambda run: run.state,
    "name": lambda run: run.name,
    "path": lambda run: str(run.path),
    "experiment": lambda run: (run.config or {}).get("experiment_name", run.path.parent.name) or None,
}
RECORDS: dict[str, Callable[[Record], Any]] = {
    "eval.length": multiple_of,  # a multiple of T
    "eval.corpus": lambda record: record["corpus"],
    "eval.split": lambda record: record["split"],
    "eval.stride": lambda record: record["stride"],
}
ALIASES = {"T": ("context_length",), "corpus": ("corpus", "data"), "data": ("data", "corpus")}
