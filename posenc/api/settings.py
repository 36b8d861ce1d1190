"""Keyword arguments as the overrides of a command, and what they compose to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine, quoted
from posenc.core.errors import UserError

PLAIN = re.compile(r"[A-Za-z_][\w.+-]*", re.ASCII)  # read by Hydra as the text that it is


def settings_of(command: str, words: list[str]) -> dict[str, Any]:
    """Return the composed settings of one job. Raises UserError."""
    composed = compose_jobs(command, CommandLine(words))
    if composed.sweep:
        raise UserError("overrides", None, "make a sweep", hint="a loop over calls does the same")
    return composed.jobs[0].settings


def words_of(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield KEY=VALUE for each; a mapping below a key sets the keys inside it."""
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            yield from words_of(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={_text(value)}"


def _text(value: Any) -> str:
    """Return a value in Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, str | Path):
        return str(value) if PLAIN.fullmatch(str(value)) else quoted(str(value))
    raise UserError("overrides", value, f"cannot be a setting ({type(value).__name__})")
