"""Choose runs by settings (`encoding=rope`, `train.lr!=0.002`, `model=na*`); split them by one."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.core.errors import UserError, visible
from posenc.results.run import Run
from posenc.results.settings import as_text, encoding_of, flatten, spoken_name

MOST_NAMED = 20  # values or keys in an error message
MOST_FACETS = 24  # tables


@dataclass(frozen=True)
class Condition:
    """One `key=values` or `key!=values`; values are separated by commas and may be globs."""

    text: str
    key: str
    values: tuple[str, ...]
    negated: bool

    def holds(self, found: str | None) -> bool:
        """Return whether a run's value fits; one that has none fits no `=` and every `!=`."""
        fits = found is not None and any(_alike(found, value) for value in self.values)
        return fits != self.negated


def where(runs: Sequence[Run], conditions: Sequence[str]) -> list[Run]:
    """Return the runs that fulfil every condition. A key is one of KEYS or a dotted setting of config.yaml.

    A group without its field means its name: `model`, `data.name`. Raises UserError for a malformed
    condition, a key that no run has, and conditions that no run fulfils.
    """
    kept = list(runs)
    for condition in [parse_condition(text) for text in conditions]:
        check_key(runs, condition.key, "--where")
        values = {id(run): value_of_key(run, condition.key) for run in kept}
        before, kept = kept, [run for run in kept if condition.holds(values[id(run)])]
        if before and not kept:
            if condition.negated:
                raise UserError("--where", condition.text, "no run fulfils it: all of them have that")
            there = sorted({value for value in values.values() if value is not None})
            asked = ",".join(condition.values)
            allowed = _first(there) or None
            raise UserError(f"--where {condition.key}", asked, "no run fulfils it", allowed=allowed)
    return kept


def parse_condition(text: str) -> Condition:
    """Return the condition `key=a,b*` or `key!=a`. Raises UserError."""
    found = re.fullmatch(r"([A-Za-z_][\w.]*)(!?=)(.+)", text.strip())
    if found is None:
        allowed = "key=value, key=value,value, key!=value; values may be globs"
        raise UserError("--where", text, "not a condition", allowed=allowed)
    key, sign, values = found.groups()
    return Condition(text, key, tuple(value.strip() for value in values.split(",")), sign == "!=")


def value_of_key(run: Run, key: str) -> str | None:
    """Return what a run has under a key, as text; None where it has nothing there."""
    if key in KEYS:
        value = KEYS[key](run)
        return None if value is None else as_text(value)
    flat = _flat(run)
    return flat.get(key, flat.get(f"{key}.name"))


def check_key(runs: Sequence[Run], key: str, option: str) -> None:
    """Raise UserError if no run has this key."""
    if not runs or any(value_of_key(run, key) is not None for run in runs):
        return
    if key in KEYS:
        damaged = [f"{visible(run.name)}: {visible(run.problem)}" for run in runs if run.problem][:3]
        raise UserError(option, key, "no run has a value for it", hint="\n".join(damaged) or None)
    known = [*KEYS, *sorted({one for run in runs for one in _flat(run)} - set(KEYS))]
    error = UserError(option, key, "no run has this key", allowed=known)  # the nearest of all is suggested
    error.allowed = _first(known)
    error.args = (error.text(),)
    raise error


def facets_of(runs: Sequence[Run], key: str) -> list[tuple[str, list[Run]]]:
    """Return the values of a key, numbers by size, and the runs that have them. Raises UserError."""
    check_key(runs, key, "--facet")
    found: dict[str, list[Run]] = {}
    for run in runs:
        value = value_of_key(run, key)
        found.setdefault("unknown" if value is None else value, []).append(run)
    if len(found) > MOST_FACETS:
        problem = f"{len(found)} values are too many tables"
        raise UserError("--facet", key, problem, allowed=f"at most {MOST_FACETS}")
    return sorted(found.items(), key=lambda item: _by_size(item[0]))


def _first(texts: Sequence[str]) -> list[str]:
    return [*texts[:MOST_NAMED], *(["..."] if len(texts) > MOST_NAMED else [])]


def _by_size(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), value
    except ValueError:
        return 1, 0.0, value


def _flat(run: Run) -> dict[str, str]:
    return flatten(run.config or dict(run.facts or {}))


def _fact(name: str) -> Callable[[Run], Any]:
    return lambda run: (run.facts or {}).get(name, (run.config or {}).get(name))


def _named(fact: str, group: str) -> Callable[[Run], Any]:
    return lambda run: spoken_name((run.facts or {}).get(fact)) or spoken_name((run.config or {}).get(group))


KEYS: dict[str, Callable[[Run], Any]] = {
    "encoding": encoding_of,
    "seed": lambda run: run.seed,
    "status": lambda run: run.state,
    "name": lambda run: run.name,
    "path": lambda run: str(run.path),
    "context_length": _fact("context_length"),
    "T": _fact("context_length"),
    "corpus": _named("corpus", "data"),
    "data": _named("corpus", "data"),
    "model": _named("model", "model"),
    "tokenizer": _named("tokenizer", "tokenizer"),
    "tokens": _fact("tokens"),
}


@functools.cache
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob))


def _alike(found: str, asked: str) -> bool:
    """Return whether it is the same text, the same number (1e-3 is 0.001), or a glob that fits."""
    if found == asked or _pattern(asked).match(found):
        return True
    try:
        return float(found) == float(asked)
    except ValueError:
        return False
