"""Write to the terminal, show the progress of a task, and let Ctrl-C end a library call that blocks."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as futures_wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TextIO, TypeVar

# Environment variable: seconds between two lines of progress. A sweep sets more for its jobs.
PROGRESS = "POSENC_PROGRESS"
LEFT_BEHIND = "posenc: a library at work"  # name of a thread that may outlive the command
PIPED_WIDTH = 100  # columns: a pipe has no width
LONG_LOOP = 50  # rounds from which a loop shows its progress
T = TypeVar("T")


def write(text: str, stream: TextIO) -> None:
    """Write text; characters that the stream's encoding lacks become escapes."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def terminal_width() -> int:
    """Return the columns to print for: COLUMNS, the terminal's own width, or 100 for a pipe."""
    return shutil.get_terminal_size((PIPED_WIDTH, 0)).columns


def say(text: str) -> None:
    """Print one plain line on stderr; a terminal that is gone, or `2>&1 | head`, must not end a run."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Return `2:05` or `1:02:05`."""
    text = str(timedelta(seconds=round(seconds)))  # 0:02:05
    return text.removeprefix("0:").removeprefix("0")


# --- Progress


class ProgressLine(ABC):
    """Show how far a task is, with the time left."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.total = total
        self._done_before = 0
        self._began_at = time.monotonic()

    def begin(self, done: int) -> None:
        """Tell what was done before, such as by an earlier process. The clock starts now."""
        self._done_before = done
        self._began_at = time.monotonic()

    @abstractmethod
    def update(self, done: int, text: str) -> None:
        """Show how much is done, with a plain text."""

    def close(self) -> None:  # noqa: B027 (not every line has something to close)
        """Leave the terminal as it was."""

    def _text(self, done: int, text: str) -> str:
        """Return `training 25/100  loss 1.234  2:05 left`."""
        line = f"{self.label} {done}/{self.total}  {text}"
        new = done - self._done_before
        if new <= 0:
            return line
        seconds_each = (time.monotonic() - self._began_at) / new
        seconds_left = seconds_each * (self.total - done)
        return f"{line}  {clock(seconds_left)} left"


class _NoLine(ProgressLine):
    """Print nothing."""

    def update(self, done: int, text: str) -> None:
        pass


class _LogLines(ProgressLine):
    """Print a line now and then, for pipes and files: a Slurm user reads them while the job runs."""

    def __init__(self, label: str, total: int) -> None:
        super().__init__(label, total)
        self._seconds_between = float(os.environ.get(PROGRESS, "5"))
        self._printed_at = time.monotonic()

    def update(self, done: int, text: str) -> None:
        now = time.monotonic()
        if now - self._printed_at >= self._seconds_between or done >= self.total:
            self._printed_at = now
            say(self._text(done, text))


class _TerminalLine(ProgressLine):
    """Draw one line again and again with rich, which also keeps what others print above it."""

    def __init__(self, label: str, total: int) -> None:
        super().__init__(label, total)
        from rich.console import Console
        from rich.progress import Progress, TextColumn
        from rich.table import Column

        console = Console(stderr=True)
        column = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
        # without rich's own thread, which could hold a lock when a signal strikes
        self._progress = Progress(column, console=console, auto_refresh=False, transient=True)
        self._task = self._progress.add_task("", total=total)
        with suppress(OSError):
            self._progress.start()

    def update(self, done: int, text: str) -> None:
        with suppress(OSError):  # the terminal is gone
            self._progress.update(
                self._task, completed=done, description=self._text(done, text), refresh=True
            )

    def close(self) -> None:
        with suppress(OSError):
            self._progress.stop()


@contextmanager
def progress_line(label: str, total: int) -> Iterator[ProgressLine]:
    """Show how far a task is: in a terminal by one line that changes, elsewhere by a line now and then."""
    can_redraw = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    if sys.stderr.isatty() and can_redraw:
        line: ProgressLine = _TerminalLine(label, total)
    else:
        line = _LogLines(label, total)
    try:
        yield line
    finally:
        line.close()


@contextmanager
def long_loop(label: str, total: int) -> Iterator[ProgressLine]:
    """Show how far a loop is whose rounds take some hundredths of a second. A short loop shows nothing."""
    if total < LONG_LOOP:
        yield _NoLine(label, total)
        return
    with progress_line(label, total) as line:
        yield line


# --- Library calls


def run_interruptible(work: Callable[[], T], *, limit: float | None = None) -> T:
    """Run `work` in a thread and return its result. Ctrl-C ends the command without waiting for the thread.

    Raises TimeoutError after `limit` seconds.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True, name=LEFT_BEHIND).start()
    finished, _ = futures_wait([result], timeout=limit)
    if not finished:
        raise TimeoutError(f"no answer in {limit:g} s")
    return result.result()


def library_at_work() -> bool:
    """Tell whether a thread of `run_interruptible` was left behind."""
    return any(thread.name == LEFT_BEHIND for thread in threading.enumerate())
