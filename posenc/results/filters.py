"""Which runs are asked for: `encoding=rope`, `seed=0,1`, `train.lr!=0.002`, `model=na*`."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.core.errors import UserError, visible
from posenc.results.load import Run
from posenc.results.settings import as_text, encoding_of, flatten, spoken_name

MOST_NAMED = 20  # values or keys in an error message


@dataclass(frozen=True)
class Condition:
    """One `key=values` or `key!=values`; values are separated by commas and may be globs."""

    text: str
    key: str
    values: tuple[str, ...]
    negated: bool

    def holds(self, found: str | None) -> bool:
        """Whether a run's value fits; one that has none fits no `=` and every `!=`."""
        fits = found is not None and any(_alike(found, value) for value in self.values)
        return fits != self.negated


def where(runs: Sequence[Run], conditions: Sequence[str]) -> list[Run]:
    """The runs for which every condition holds. A key is one of KEYS or a dotted setting of config.yaml.

    A group without its field means its name: `model`, `data.name`. Raises UserError for a condition that is
    not one, a key that no run has, and conditions that no run fulfils.
    """
    parsed = [parse_condition(text) for text in conditions]
    kept = list(runs)
    for condition in parsed:
        check_key(runs, condition.key, "--where")
        values = {id(run): value_of_key(run, condition.key) for run in runs}
        before, kept = kept, [run for run in kept if condition.holds(values[id(run)])]
        if before and not kept:
            if condition.negated:
                raise UserError(
                    "--where", visible(condition.text), "no run fulfils it: all of them have that"
                )
            there = sorted({visible(values[id(run)]) for run in before if values[id(run)] is not None})
            there = there[:MOST_NAMED] + (["..."] if len(there) > MOST_NAMED else [])
            asked = visible(",".join(condition.values))
            raise UserError(f"--where {condition.key}", asked, "no run fulfils it", allowed=there or None)
    return kept


def parse_condition(text: str) -> Condition:
    """`key=a,b*` or `key!=a`. Raises UserError."""
    found = re.fullmatch(r"([A-Za-z_][\w.]*)(!?=)(.+)", text.strip())
    if found is None:
        raise UserError(
            "--where",
            visible(text),
            "not a condition",
            allowed="key=value, key=value,value, key!=value; values may be globs",
        )
    key, sign, values = found.groups()
    return Condition(text, key, tuple(value.strip() for value in values.split(",")), sign == "!=")


def value_of_key(run: Run, key: str) -> str | None:
    """What a run has under a key, as text; None where it has nothing there."""
    if key in KEYS:
        value = KEYS[key](run)
        return None if value is None else as_text(value)
    flat = _flat(run)
    return flat.get(key, flat.get(f"{key}.name"))


def _flat(run: Run) -> dict[str, str]:
    return flatten(run.config or dict(run.facts or {}))


def _fact(run: Run, name: str) -> Any:
    facts = run.facts or {}
    return facts.get(name, (run.config or {}).get(name))


def _named(run: Run, fact: str, group: str) -> str | None:
    return spoken_name((run.facts or {}).get(fact)) or spoken_name((run.config or {}).get(group))


KEYS: dict[str, Callable[[Run], Any]] = {
    "encoding": encoding_of,
    "seed": lambda run: run.seed,
    "status": lambda run: run.state,
    "name": lambda run: run.name,
    "path": lambda run: str(run.path),
    "context_length": lambda run: _fact(run, "context_length"),
    "T": lambda run: _fact(run, "context_length"),
    "corpus": lambda run: _named(run, "corpus", "data"),
    "data": lambda run: _named(run, "corpus", "data"),
    "model": lambda run: _named(run, "model", "model"),
    "tokenizer": lambda run: _named(run, "tokenizer", "tokenizer"),
    "tokens": lambda run: _fact(run, "tokens"),
}


@functools.cache
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(glob))


def _alike(found: str, asked: str) -> bool:
    """The same text, the same number (1e-3 is 0.001), or a glob that fits."""
    if found == asked or _pattern(asked).match(found):
        return True
    try:
        return float(found) == float(asked)
    except ValueError:
        return False


def check_key(runs: Sequence[Run], key: str, option: str) -> None:
    """Raise UserError if no run has this key."""
    if not runs or any(value_of_key(run, key) is not None for run in runs):
        return
    if key in KEYS:
        damaged = [f"{visible(run.name)}: {visible(run.problem)}" for run in runs if run.problem][:3]
        raise UserError(option, visible(key), "no run has a value for it", hint="\n".join(damaged) or None)
    known = [*KEYS, *sorted({one for run in runs for one in _flat(run)} - set(KEYS))]
    error = UserError(option, visible(key), "no run has this key", allowed=known)
    error.allowed = known[:MOST_NAMED] + (["..."] if len(known) > MOST_NAMED else [])
    error.args = (error.text(),)
    raise error
