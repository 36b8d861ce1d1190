"""Show how far a task is: a bar in a terminal and a notebook, lines in a pipe."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from posenc.core import first_signals
from posenc.core.console import say
from posenc.core.errors import UserError
from posenc.core.quantities import bytes_text, clock

# Environment variable: seconds between two lines of progress in a pipe. A sweep sets more for its jobs.
PROGRESS = "POSENC_PROGRESS"
PIPE_SECONDS = "60"  # between two lines of progress
REFRESH_SECONDS = 0.25  # between two pictures of the bar
DRAWS_PROGRESS = "posenc: progress"  # name of the thread that draws
ERASE_LINE = b"\r\x1b[2K\x1b[?25h"  # and the cursor is back, which rich hides
# columns
WIDEST_BAR = 30
NARROWEST_BAR = 6
SHORTEST_TEXT = 8
LONG_LOOP = 50  # rounds from which a loop shows its progress


@dataclass(frozen=True)
class Title:
    """Hold the words of a task: its name, how it counts, and what separates the parts of a line."""

    name: str
    count_format: str = "{name} {done}/{total}"
    separator: str = "  "
    counts_bytes: bool = False
    time_text: Callable[[float], str] = clock  # words the seconds that are left
    has_last_line: bool = True  # in a pipe; otherwise a task of less than a minute leaves no line
    gives_way: bool = False  # the next task takes its place


STARTING = Title("starting", has_last_line=False, gives_way=True)


class Progress(ABC):
    """Show how far a task is, with the time left. A thread draws it, by time and not by what is done.

    `total` is None where nobody knows it. `done` may lie between two whole numbers, inside a long item.
    """

    seconds_between_refreshes = REFRESH_SECONDS

    def __init__(self, title: Title, total: int | None) -> None:
        self.title = title
        self.total = total
        self.done = 0.0
        self.text = ""
        self._done_before = 0.0
        self._work_before = [0.0]  # that of all items before an item
        self._began_at = time.monotonic()
        self._updated_at = self._began_at
        self._seconds_left: float | None = None  # at the last update, if the caller has told
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def open(self) -> None:
        """Draw it for the first time, and begin to draw it again and again."""
        self.refresh()
        threading.Thread(target=self._keep_refreshing, daemon=True, name=DRAWS_PROGRESS).start()

    def weigh(self, work: Sequence[float]) -> None:
        """Tell how much work each item is, for the time left. Without it all items are alike."""
        self._work_before = [0.0, *itertools.accumulate(work)]

    def begin(self, done: float) -> None:
        """Tell what was done before, such as by an earlier process. The clock starts now."""
        self.done = done
        # What an earlier process did took none of this one's time, so that it must not count for the speed.
        self._done_before = done
        self._began_at = time.monotonic()
        self._updated_at = self._began_at

    def update(self, done: float, text: str | None = None, seconds_left: float | None = None) -> None:
        """Tell how much is done; the text, which is plain, stays as it was where none is given.

        The time left follows from what is done, unless `seconds_left` tells it.
        """
        self.done = done
        self._updated_at = time.monotonic()
        self._seconds_left = seconds_left
        if text is not None:
            self.text = text

    @abstractmethod
    def refresh(self) -> None:
        """Show it if it is time to."""

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._closed.set()
        # after this nobody draws any more. The thread is not waited for: a signal may have struck anywhere
        with self._lock, suppress(OSError):
            self._end()

    def _end(self) -> None:  # noqa: B027 (not every one has something to end)
        """Show the end, or clear what was drawn."""

    def _keep_refreshing(self) -> None:
        while not self._closed.wait(self.seconds_between_refreshes):
            with self._lock, suppress(OSError):  # the terminal is gone
                if not self._closed.is_set():
                    self.refresh()

    @property
    def count(self) -> str:
        """Return `training 25/100`, without a total `reading 25`; of bytes `reading 12/340 MB`."""
        if self.title.counts_bytes:
            return f"{self.title.name} {bytes_text(self.done, self.total)}"
        done = int(self.done)
        if self.total is None:
            return f"{self.title.name} {done:,}" if done else self.title.name
        return self.title.count_format.format(name=self.title.name, done=done, total=self.total)

    @property
    def time_left(self) -> str:
        """Return `2:05 left`; an empty text while nobody knows it."""
        seconds_left = self._seconds_left
        if seconds_left is None:
            seconds_left = self._seconds_left_by_work()
        if seconds_left is None:
            return ""
        # Between two updates, which may be a minute apart, the time counts down as a clock does.
        since_update = time.monotonic() - self._updated_at
        return f"{self.title.time_text(max(0.0, seconds_left - since_update))} left"

    def _seconds_left_by_work(self) -> float | None:
        """Return the seconds that were left at the last update; None before anything was done."""
        if self.total is None:
            return None
        work_done = self._work(self.done)
        new_work = work_done - self._work(self._done_before)
        if new_work <= 0:
            return None
        seconds_each = (self._updated_at - self._began_at) / new_work
        return seconds_each * (self._work(self.total) - work_done)

    def _work(self, done: float) -> float:
        """Return the work of so many items, the last of which may be done in part."""
        item = int(done)
        if item + 1 >= len(self._work_before):  # past the items that were weighed
            return self._work_before[-1] + done - (len(self._work_before) - 1)
        work_before = self._work_before[item]
        return work_before + (done - item) * (self._work_before[item + 1] - work_before)

    @property
    def time_so_far(self) -> str:
        """Return `0:12`, the time since the task began: it moves while nothing is done yet."""
        return clock(time.monotonic() - self._began_at)

    def line(self) -> str:
        """Return `training 25/100  loss 1.234  2:05 left`."""
        parts = [self.count, self.text, self.time_left]
        return self.title.separator.join(part for part in parts if part)


class _NoProgress(Progress):
    """Show nothing."""

    def open(self) -> None:
        pass

    def refresh(self) -> None:
        pass


def _seconds_between_lines() -> float:
    """Return how many seconds lie between two lines in a pipe. Raises UserError for what is no time."""
    text = os.environ.get(PROGRESS) or PIPE_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UserError(PROGRESS, text, "is no time", allowed="seconds from 0")
    return seconds


class _LogLines(Progress):
    """Print a line a minute, for pipes and files: a Slurm user reads them while the job runs."""

    def __init__(self, title: Title, total: int | None) -> None:
        super().__init__(title, total)
        self._seconds_between = _seconds_between_lines()
        self._printed_at = time.monotonic()
        self._printed = ""

    def update(self, done: float, text: str | None = None, seconds_left: float | None = None) -> None:
        super().update(done, text, seconds_left)
        if self._seconds_between == 0:
            with self._lock:
                self._print()

    def refresh(self) -> None:
        is_due = time.monotonic() - self._printed_at >= self._seconds_between
        if is_due and self._seconds_between > 0:  # at 0 each update prints a line, and nothing else does
            self._print()

    def _end(self) -> None:
        # not when the last update comes: its text may follow in an update of its own
        is_done = self.total is not None and self.done >= self.total
        if is_done and self.title.has_last_line:
            self._print()

    def _print(self) -> None:
        self._printed_at = time.monotonic()
        # A task that waits says the same for minutes, and a log need not repeat it.
        line = self.line()
        if line != self._printed:
            self._printed = line
            say(line)


class _Bar(Progress):
    """Draw a bar with rich, which also keeps what others print above it; in a notebook its widget."""

    def __init__(self, title: Title, total: int | None) -> None:
        super().__init__(title, total)
        from rich.console import Console
        from rich.progress import Progress as RichProgress
        from rich.progress import RenderableColumn

        self._console = Console(stderr=True)
        self._column = RenderableColumn("")
        # without rich's own thread, whose end rich waits for: a signal may strike while one waits
        self._rich = RichProgress(self._column, console=self._console, auto_refresh=False, transient=True)
        self._rich.add_task("", total=total)
        with suppress(OSError):
            self._rich.start()
        if self._console.is_terminal:
            first_signals.erase_progress = ERASE_LINE

    def refresh(self) -> None:
        with suppress(OSError):  # the terminal is gone
            self._column.renderable = self._drawn()
            self._rich.refresh()

    def _drawn(self) -> Any:
        """Return count, bar, text and time, as far as they fit: a narrow terminal has the count alone."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        width = self._console.width - 1  # a full last column makes some terminals begin another line
        time_text = self.time_left or self.time_so_far
        count = self.count
        # The name goes first: the numbers are what a reader looks for.
        if len(count) + 1 + len(time_text) > width:
            count = count.removeprefix(f"{self.title.name} ")
        parts: list[Any] = [Text(count)]
        free = width - len(count)
        has_time = free > len(time_text)
        if has_time:
            free -= len(time_text) + 1
        bar_width = min(WIDEST_BAR, free - 1 - len(self.text) - 1)
        if bar_width < NARROWEST_BAR and free - 1 >= NARROWEST_BAR:
            bar_width = NARROWEST_BAR
        if bar_width >= NARROWEST_BAR:
            # While nothing is done, a bar that moves shows that the command has not died.
            pulses = self.total is None or (self.done <= self._done_before and self.total > 0)
            bar = ProgressBar(total=self.total, completed=self.done, width=bar_width, pulse=pulses)
            parts.append(bar)
            free -= bar_width + 1
        if self.text and free - 1 >= SHORTEST_TEXT:
            text = Text(self.text)
            text.truncate(free - 1, overflow="ellipsis")
            parts.append(text)
        if has_time:
            parts.append(Text(time_text))
        grid = Table.grid(padding=(0, 1, 0, 0))
        for _ in parts:
            grid.add_column(no_wrap=True)
        grid.add_row(*parts)
        return grid

    def _end(self) -> None:
        self._rich.stop()
        first_signals.erase_progress = b""


def in_notebook() -> bool:
    """Tell whether a Jupyter kernel runs this process."""
    # Without importing IPython: if a kernel runs this process, it has imported it.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _can_draw() -> bool:
    """Tell whether a bar can be drawn: in a terminal that can erase, or in a notebook with ipywidgets."""
    if in_notebook():
        # Without ipywidgets all that rich shows in a notebook is a warning.
        return importlib.util.find_spec("ipywidgets") is not None
    can_erase = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return sys.stderr.isatty() and can_erase


_shown: list[Progress] = []  # the task that is shown now, if there is one


@contextmanager
def progress_of(title: Title, total: int | None) -> Iterator[Progress]:
    """Show how far a task is: a bar in a terminal and a notebook, elsewhere a line a minute.

    A task inside another one shows nothing: there is one bar.
    """
    end_starting()
    if _shown:
        yield _NoProgress(title, total)
        return
    progress: Progress = _Bar(title, total) if _can_draw() else _LogLines(title, total)
    _shown.append(progress)
    try:
        progress.open()
        yield progress
    finally:
        if progress in _shown:  # otherwise another task has taken its place
            _shown.remove(progress)
            progress.close()


def starting() -> AbstractContextManager[Progress]:
    """Show that a command begins, since its imports take seconds. Its first task takes the place."""
    return progress_of(STARTING, None)


def end_starting() -> None:
    """Clear the line of a command that begins, before a result is printed or a sweep begins."""
    if _shown and _shown[0].title.gives_way:
        _shown.pop().close()


def progress_line(name: str, total: int | None) -> AbstractContextManager[Progress]:
    """Show how far the task with this name is."""
    return progress_of(Title(name), total)


@contextmanager
def long_loop(label: str, total: int) -> Iterator[Progress]:
    """Show how far a loop is whose rounds take some hundredths of a second. A short loop shows nothing."""
    if total < LONG_LOOP:
        yield _NoProgress(Title(label), total)
        return
    with progress_line(label, total) as line:
        yield line
