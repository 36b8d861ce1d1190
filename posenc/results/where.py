"""`--where`: choose runs by conditions on their settings, facts and state."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.core.errors import UserError
from posenc.results.numbers import as_text, flat_texts
from posenc.results.runs import Run

KEYS: dict[str, Callable[[Run], Any]] = {
    "encoding": lambda run: run.encoding,
    "seed": lambda run: run.seed,
    "status": lambda run: run.state,
    "name": lambda run: run.name,
    "path": lambda run: str(run.path),
    "experiment": lambda run: run.experiment,
}
# Keys under which a value is looked for, in this order.
ALIASES = {"T": ("context_length",), "corpus": ("corpus", "data"), "data": ("data", "corpus")}
CONDITION = re.compile(r"([A-Za-z_][\w.]*)(!?=)(.+)")


@dataclass(frozen=True)
class Condition:
    """A condition `key=pattern,pattern` or `key!=pattern,pattern`."""

    key: str
    patterns: tuple[str, ...]
    excludes: bool

    def holds(self, value: str | None) -> bool:
        """Tell whether a run with this value fulfils the condition. Without a value it fulfils every `!=`."""
        fits = value is not None and any(_fits(value, pattern) for pattern in self.patterns)
        return fits != self.excludes


def matching_runs(runs: Sequence[Run], conditions: Sequence[str]) -> list[Run]:
    """Return the runs that fulfil every condition: `encoding=rope,al*`, `train.lr!=0.002`.

    A key is one of KEYS or a setting of config.yaml such as `train.lr`; `model` stands for `model.name`.
    Raises UserError for a malformed condition, a key that no run has, and conditions that no run fulfils.
    """
    chosen = list(runs)
    for text in conditions:
        condition = parse_condition(text)
        # All runs are asked and not those that are left: a key that only excluded runs have is no misspelt
        # key.
        if runs and all(value_of_key(run, condition.key) is None for run in runs):
            raise _unknown_key(condition.key, runs)
        values = [value_of_key(run, condition.key) for run in chosen]
        fitting = [run for run, value in zip(chosen, values, strict=True) if condition.holds(value)]
        # A condition that nobody fulfils is a slip: an empty answer would look as if there were no such runs
        # on disk.
        if chosen and not fitting:
            sign = "!" if condition.excludes else ""
            allowed = sorted({value for value in values if value is not None})
            patterns = ",".join(condition.patterns)
            raise UserError(f"--where {condition.key}{sign}", patterns, "no run fulfils it", allowed=allowed)
        chosen = fitting
    return chosen


def parse_condition(text: str) -> Condition:
    """Return the condition that `key=value,value` stands for. Raises UserError."""
    match = CONDITION.fullmatch(text.strip())
    if match is None:
        allowed = "key=value, key=value,value, key!=value; values may be globs"
        raise UserError("--where", text, "not a condition", allowed=allowed)
    key, sign, patterns = match.groups()
    return Condition(key, tuple(pattern.strip() for pattern in patterns.split(",")), sign == "!=")


def value_of_key(run: Run, key: str) -> str | None:
    """Return a run's value of a key as text; None if it has none."""
    if key in KEYS:
        value = KEYS[key](run)
        return None if value is None else as_text(value)
    flat = _flat(run)
    for name in ALIASES.get(key, (key,)):
        for field in (name, f"{name}.name"):
            if field in flat:
                return flat[field]
    return None


def _unknown_key(key: str, runs: Sequence[Run]) -> UserError:
    """Return the error for a key that no run has, with all keys that some run has."""
    settings = sorted({field for run in runs for field in _flat(run)} - {*KEYS, *ALIASES})
    return UserError("--where", key, "no run has this key", allowed=[*KEYS, *ALIASES, *settings])


def _flat(run: Run) -> dict[str, str]:
    """Return the facts and settings of a run as text by dotted key."""
    facts = {} if run.facts is None else flat_texts(run.facts)
    settings = {} if run.settings is None else flat_texts(run.settings.plain())
    return facts | settings


def _fits(value: str, pattern: str) -> bool:
    """Tell whether a value is this text, this number (1e-3 is 0.001), or fits the glob."""
    if value == pattern or fnmatch.fnmatchcase(value, pattern):
        return True
    with contextlib.suppress(ValueError):
        return float(value) == float(pattern)
    return False
