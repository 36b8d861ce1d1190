"""Write to stderr while work goes on: single lines, and the progress of one task.

Progress is a bar in a terminal, else a line every few seconds. The jobs of a sweep show none
(POSENC_PROGRESS=off): the sweep draws for all of them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TextIO, cast

SECONDS_BETWEEN_LINES = 5.0
PROGRESS = "POSENC_PROGRESS"  # environment variable; off: `shown` shows nothing


class _Stream:
    """stderr without errors: a closed terminal or `2>&1 | head` must not end a run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def screen() -> TextIO:
    """Return stderr as it is now; writing to it never raises."""
    return cast("TextIO", _Stream(sys.stderr))


def say(text: str) -> None:
    """Print one plain line on stderr."""
    print(text, file=screen(), flush=True)


def clock(seconds: float) -> str:
    """Return `2:05` or `1:02:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Shown(Protocol):
    """What a task reports its progress to."""

    def begin(self, done: int) -> None:
        """Set what was done before; the time left is estimated from what follows."""

    def update(self, done: int, text: str) -> None:
        """Report how much is done, with a plain text."""


class _Task:
    """Shows nothing, and knows the time left."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total = label, total
        self.first = self.done = 0
        self.began = time.monotonic()

    def begin(self, done: int) -> None:
        self.first = self.done = done
        self.began = time.monotonic()

    def update(self, done: int, text: str) -> None:
        self.done = done

    def left(self) -> str:
        if self.done <= self.first:
            return "-:--"
        pace = (time.monotonic() - self.began) / (self.done - self.first)
        return clock(pace * (self.total - self.done))


class _Lines(_Task):
    def __init__(self, label: str, total: int) -> None:
        super().__init__(label, total)
        self.last = time.monotonic()

    def update(self, done: int, text: str) -> None:
        super().update(done, text)
        if time.monotonic() - self.last >= SECONDS_BETWEEN_LINES or done >= self.total:
            self.last = time.monotonic()
            say(f"{self.label} {done}/{self.total}  {text}  {self.left()} left")


@contextmanager
def shown(label: str, total: int) -> Iterator[Shown]:
    """Show progress up to `total`; `label` and the texts are plain, not markup."""
    if os.environ.get(PROGRESS) == "off":
        yield _Task(label, total)
        return
    if not sys.stderr.isatty():
        yield _Lines(label, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        TextColumn("{task.fields[left]}", style="progress.remaining"),
    )
    console = Console(file=screen())
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as progress:
        task = progress.add_task(label, total=total, text="", left="")

        class Bar(_Task):
            def begin(self, done: int) -> None:
                super().begin(done)
                progress.update(task, completed=done)

            def update(self, done: int, text: str) -> None:
                super().update(done, text)
                progress.update(task, completed=done, text=text, left=self.left())

        yield Bar(label, total)
