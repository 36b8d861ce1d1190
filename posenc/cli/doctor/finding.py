"""One line of `posenc doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """`problem`: this stops `posenc train encoding=rope`. `advice` says what to do about it."""

    name: str
    level: Level
    text: str
    advice: str | None = None


Check = Callable[[], Iterator[Finding]]


def guarded(name: str, check: Check, essential: bool) -> list[Finding]:
    """What a check finds; what it raises is a finding, too: in a broken installation anything may."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except (Exception, SystemExit) as error:  # a library gives up by SystemExit
        level: Level = "problem" if essential else "note"
        found.append(Finding(name, level, f"cannot be told ({short(error)})"))
    return found


def short(error: BaseException) -> str:
    """`ImportError: libfoo.so is missing`: the kind and the first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def visible(text: str) -> str:
    """As of posenc.core.errors: here nothing else of posenc may be needed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def size(count: float) -> str:
    """Bytes in short: `120 MB`, `1.5 GB`."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{int(count)} bytes"
