"""Speak on stderr while work goes on: lines, one task's progress, library calls that Ctrl-C can end."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TextIO, TypeVar, cast

SECONDS_BETWEEN_LINES = 5.0
PROGRESS = "POSENC_PROGRESS"  # environment variable; off in the jobs of a sweep, which tells of all of them
UNINTERRUPTIBLE_THREAD = "posenc: a library at work"  # the name of a thread that may outlive the command
T = TypeVar("T")


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


def say(text: str) -> None:
    """Print one plain line on stderr."""
    print(text, file=cast("TextIO", _Stream(sys.stderr)), flush=True)


def clock(seconds: float) -> str:
    """Return `2:05` or `1:02:05`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """How far a task is; `show(done, text)` is called with every update, its last words the time left."""

    def __init__(self, total: int, show: Callable[[int, str], None]) -> None:
        self.total, self.show = total, show
        self.begin(0)

    def begin(self, done: int) -> None:
        """Set what was done before; the time left is estimated from what follows."""
        self.first, self.began = done, time.monotonic()

    def update(self, done: int, text: str) -> None:
        """Report how much is done, with a plain text."""
        if done > self.first:
            pace = (time.monotonic() - self.began) / (done - self.first)
            text = f"{text}  {clock(pace * (self.total - done))} left"
        self.show(done, text)


@contextmanager
def shown(label: str, total: int) -> Iterator[Progress]:
    """Show progress up to `total`: a bar in a terminal, else a line every few seconds."""
    if os.environ.get(PROGRESS) == "off":
        yield Progress(total, lambda done, text: None)
        return
    if not sys.stderr.isatty():
        last = time.monotonic()

        def line(done: int, text: str) -> None:
            nonlocal last
            if time.monotonic() - last >= SECONDS_BETWEEN_LINES or done >= total:
                last = time.monotonic()
                say(f"{label} {done}/{total}  {text}")

        yield Progress(total, line)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    words = TextColumn("{task.fields[text]}", markup=False)
    columns = (TextColumn(label, markup=False), BarColumn(bar_width=None), MofNCompleteColumn(), words)
    console = Console(file=cast("TextIO", _Stream(sys.stderr)))
    with Bar(*columns, console=console, transient=True, refresh_per_second=4) as bar:
        task = bar.add_task(label, total=total, text="")
        yield Progress(total, lambda done, text: bar.update(task, completed=done, text=text))


def run_interruptible(
    work: Callable[[threading.Event], T],
    *,
    limit: float | None = None,
    every: float = 5.0,
    waiting: Callable[[float], None] = lambda seconds: None,
) -> T:
    """Return `work(given_up)`, run in a thread, so that a signal stops the waiting at once.

    `waiting(seconds so far)` is called every so many seconds. `given_up` is set when nobody waits any more,
    after a signal or `limit` seconds (TimeoutError); a thread that goes on ends with the process.
    """
    result: Future[T] = Future()
    given_up = threading.Event()

    def run() -> None:
        try:
            result.set_result(work(given_up))
        except BaseException as error:
            result.set_exception(error)

    began = time.monotonic()
    thread = threading.Thread(target=run, daemon=True, name=UNINTERRUPTIBLE_THREAD)
    thread.start()
    try:
        while thread.is_alive():
            so_far = time.monotonic() - began
            if limit is not None and so_far >= limit:
                raise TimeoutError(f"no answer in {limit:g} s")
            thread.join(every if limit is None else min(every, limit - so_far))
            if thread.is_alive():
                waiting(time.monotonic() - began)
    except BaseException:
        given_up.set()
        thread.join(1)
        raise
    return result.result()


def library_at_work() -> bool:
    """Tell whether a thread of `run_interruptible` was left behind."""
    return any(thread.name == UNINTERRUPTIBLE_THREAD for thread in threading.enumerate())
