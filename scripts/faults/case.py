"""What a family of faults is made of: cases that are tried, counted and timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Seen:
    """What came of a case: `failed` of `tried` attempts broke a promise; `text` says what was seen."""

    text: str
    tried: int = 1
    failed: int = 0
    details: tuple[str, ...] = ()  # what was seen of each failed attempt


@dataclass(frozen=True)
class Case:
    """One line of the battery: what is done, what is promised, and how to find out."""

    name: str
    expected: str
    run: Callable[[], Seen]


@dataclass(frozen=True)
class Family:
    """Cases that share a set-up. `cases(place, quick)` yields them; `place` is an empty folder of its own."""

    name: str
    cases: Callable[[Path, bool], Iterator[Case]]
    needs: tuple[str, ...] = field(default=())  # programs without which it is skipped, such as strace
