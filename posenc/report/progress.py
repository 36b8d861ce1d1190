"""What a person sees while it runs, on stderr: a bar in a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 5.0


class Shown(Protocol):
    """Told how far the work is."""

    def begin(self, done: int) -> None:
        """So much was done before; the time left does not count it."""

    def update(self, done: int, text: str) -> None: ...


class _Bar:
    def __init__(self, progress: Progress, label: str, total: int) -> None:
        self.progress = progress
        self.task = progress.add_task(label, total=total, text="")

    def begin(self, done: int) -> None:
        self.progress.reset(self.task, completed=done)

    def update(self, done: int, text: str) -> None:
        self.progress.update(self.task, completed=done, text=text)


class _Lines:
    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.first = label, total, 0
        self.began = self.last = time.monotonic()

    def begin(self, done: int) -> None:
        self.first, self.began = done, time.monotonic()

    def update(self, done: int, text: str) -> None:
        now = time.monotonic()
        if now - self.last < SECONDS_BETWEEN_LINES and done < self.total:
            return
        self.last = now
        each = (now - self.began) / max(1, done - self.first)
        left = _clock(each * (self.total - done))
        print(f"{self.label} {done}/{self.total}  {text}  {left} left", file=sys.stderr, flush=True)


@contextmanager
def shown(label: str, total: int) -> Iterator[Shown]:
    """Progress up to `total`; `label` and the texts are plain, not markup."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines(label, total)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as progress:
        yield _Bar(progress, label, total)


def say(text: str) -> None:
    """One plain line on stderr."""
    print(text, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
