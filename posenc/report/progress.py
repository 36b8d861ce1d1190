"""What a person sees while it runs, on stderr: a bar in a terminal, else a line every few seconds.

In a sweep the whole of it stands below (posenc.report.live): which job of how many, the time left in all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from posenc.core.screen import screen
from posenc.report.live import SweepState, clock, sweep_table
from posenc.report.several import IN_A_LOG, SECONDS

SECONDS_BETWEEN_LINES = float(os.environ.get(SECONDS, IN_A_LOG))


class Shown(Protocol):
    """Told how far the work is."""

    def begin(self, done: int) -> None:
        """So much was done before; the time left does not count it."""

    def update(self, done: int, text: str) -> None: ...


class _Pace:
    """Seconds left from what was done since the beginning."""

    def __init__(self, total: int) -> None:
        self.total, self.first, self.done = total, 0, 0
        self.began = time.monotonic()

    def begin(self, done: int) -> None:
        self.first, self.done, self.began = done, done, time.monotonic()

    def left(self) -> float | None:
        """None before anything is done."""
        if self.done <= self.first:
            return None
        return (time.monotonic() - self.began) / (self.done - self.first) * (self.total - self.done)


class _TimeLeft(ProgressColumn):
    """What the task itself says is left."""

    def render(self, task: Task) -> RenderableType:
        said = task.fields["left"]()
        return Text(said, style="progress.remaining")


class _Bars(Progress):
    """The bars of a run and of its sweep, with the table of finished cells above."""

    sweep: SweepState | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.sweep is not None and self.sweep.rows:
            yield sweep_table(self.sweep, self.console.width, max(3, self.console.height - 8))
        yield from super().get_renderables()


class _Bar:
    def __init__(self, progress: _Bars, label: str, total: int) -> None:
        self.progress, self.pace = progress, _Pace(total)
        self.task = progress.add_task(label, total=total, text="", left=self._left)
        if (sweep := progress.sweep) is not None:
            done = sweep.number - 1
            progress.add_task("sweep", total=sweep.total, completed=done, text="", left=self._left_in_all)

    def begin(self, done: int) -> None:
        self.pace.begin(done)
        self.progress.update(self.task, completed=done)

    def update(self, done: int, text: str) -> None:
        self.pace.done = done
        self.progress.update(self.task, completed=done, text=text)

    def _left(self) -> str:
        left = self.pace.left()
        return "-:--" if left is None else clock(left)

    def _left_in_all(self) -> str:
        return "" if self.progress.sweep is None else self.progress.sweep.left(self.pace.left())


class _Lines:
    def __init__(self, label: str, total: int, sweep: SweepState | None) -> None:
        self.label, self.pace, self.sweep = label, _Pace(total), sweep
        self.last = time.monotonic()

    def begin(self, done: int) -> None:
        self.pace.begin(done)

    def update(self, done: int, text: str) -> None:
        now = time.monotonic()
        if now - self.last < SECONDS_BETWEEN_LINES and done < self.pace.total:
            return
        self.last, self.pace.done = now, done
        left = self.pace.left()
        line = f"{self.label} {done}/{self.pace.total}  {text}  {clock(left or 0)} left"
        if self.sweep is not None:
            whole = self.sweep.left(left)
            line += f"; job {self.sweep.number} of {self.sweep.total}" + (
                f", {whole} in all" if whole else ""
            )
        say(line)


@contextmanager
def shown(label: str, total: int) -> Iterator[Shown]:
    """Progress up to `total`; `label` and the texts are plain, not markup."""
    console, sweep = Console(file=screen()), SweepState.from_environment()
    if not console.is_terminal:
        yield _Lines(label, total, sweep)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}", markup=False),
        _TimeLeft(),
    )
    bars = _Bars(*columns, console=console, transient=True, refresh_per_second=4, auto_refresh=True)
    bars.sweep = sweep
    with bars as progress:
        yield _Bar(progress, label, total)


def say(text: str) -> None:
    """One plain line on stderr."""
    print(text, file=screen(), flush=True)
