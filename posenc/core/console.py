"""Write to the terminal: text, lines on stderr, one task's progress; library calls that Ctrl-C can end."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as futures_wait
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TextIO, TypeVar

PROGRESS = "POSENC_PROGRESS"  # environment variable: seconds between two lines; more in the jobs of a sweep
UNINTERRUPTIBLE_THREAD = "posenc: a library at work"  # the name of a thread that may outlive the command
PIPED_WIDTH = 100  # columns: a pipe has no width
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
    return str(timedelta(seconds=round(seconds))).removeprefix("0:").removeprefix("0")


# --- Progress


@contextmanager
def progress_line(label: str, total: int) -> Iterator[ProgressLine]:
    """Show how far a task is: one line that changes in a terminal, else one now and then."""
    if sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown"):
        line: ProgressLine = _TerminalLine(label, total)
    else:
        line = _LogLines(label, total)
    try:
        yield line
    finally:
        line.close()


class ProgressLine:
    """How far a task is, with the time left."""

    def __init__(self, label: str, total: int) -> None:
        self.label = label
        self.total = total
        self.begin(0)

    def begin(self, done: int) -> None:
        """Set what was done before; the time left is estimated from what follows."""
        self._done_before = done
        self._began = time.monotonic()

    def update(self, done: int, text: str) -> None:
        """Report how much is done, with a plain text."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave the terminal as it was."""

    def _text(self, done: int, text: str) -> str:
        """Return `training 25/100  loss 1.234  2:05 left`."""
        line = f"{self.label} {done}/{self.total}  {text}"
        new = done - self._done_before
        if new <= 0:
            return line
        seconds_each = (time.monotonic() - self._began) / new
        return f"{line}  {clock(seconds_each * (self.total - done))} left"


class _LogLines(ProgressLine):
    """Print a line now and then, for pipes and files: a Slurm user reads them while the job runs."""

    def __init__(self, label: str, total: int) -> None:
        super().__init__(label, total)
        self._seconds_between = float(os.environ.get(PROGRESS, "5"))
        self._printed = time.monotonic()

    def update(self, done: int, text: str) -> None:
        now = time.monotonic()
        if now - self._printed >= self._seconds_between or done >= self.total:
            self._printed = now
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
        # drawn when there is news: a thread of rich's own could hold a lock when a signal strikes
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


# --- Library calls


def run_interruptible(work: Callable[[], T], *, limit: float | None = None) -> T:
    """Return `work()`, run in a thread that a signal need not wait for; TimeoutError after `limit` s."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True, name=UNINTERRUPTIBLE_THREAD).start()
    if not futures_wait([result], timeout=limit).done:
        raise TimeoutError(f"no answer in {limit:g} s")
    return result.result()


def library_at_work() -> bool:
    """Tell whether a thread of `run_interruptible` was left behind."""
    return any(thread.name == UNINTERRUPTIBLE_THREAD for thread in threading.enumerate())
