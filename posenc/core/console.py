"""Print on stderr while work goes on: lines, one task's progress, library calls that Ctrl-C can end."""

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
from typing import TypeVar

CLEAR = "\r\x1b[K"  # back to the beginning of the line, which goes
PROGRESS = "POSENC_PROGRESS"  # environment variable: seconds between two lines; more in the jobs of a sweep
UNINTERRUPTIBLE_THREAD = "posenc: a library at work"  # the name of a thread that may outlive the command
T = TypeVar("T")


def say(text: str, end: str = "\n") -> None:
    """Print one plain line on stderr; a terminal that is gone, or `2>&1 | head`, must not end a run."""
    with suppress(OSError):
        print(text, file=sys.stderr, end=end, flush=True)


def clock(seconds: float) -> str:
    """Return `2:05` or `1:02:05`."""
    return str(timedelta(seconds=round(seconds))).removeprefix("0:").removeprefix("0")


class Progress:
    """How far a task is, with the time left: one line that changes in a terminal, else one now and then."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total = label, total
        self.seconds, self.terminal = float(os.environ.get(PROGRESS, "5")), sys.stderr.isatty()
        self.printed = time.monotonic()
        self.begin(0)

    def begin(self, done: int) -> None:
        """Set what was done before; the time left is estimated from what follows."""
        self.first, self.began = done, time.monotonic()

    def update(self, done: int, text: str) -> None:
        """Report how much is done, with a plain text."""
        now, line = time.monotonic(), f"{self.label} {done}/{self.total}  {text}"
        if done > self.first:
            pace = (now - self.began) / (done - self.first)
            line += f"  {clock(pace * (self.total - done))} left"
        if self.terminal:
            say(CLEAR + line[: shutil.get_terminal_size().columns - 1], end="")
        elif now - self.printed >= self.seconds or done >= self.total:
            self.printed = now
            say(line)


@contextmanager
def shown(label: str, total: int) -> Iterator[Progress]:
    """Show progress up to `total`."""
    progress = Progress(label, total)
    try:
        yield progress
    finally:
        if progress.terminal:
            say(CLEAR, end="")


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
