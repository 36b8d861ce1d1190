"""Long work that can be followed and stopped: progress lines, locks of the cache, deaf library calls."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TypeVar

from filelock import Timeout

from posenc.core.durable import cannot_write, file_lock
from posenc.core.names import DEAF, visible
from posenc.core.screen import screen
from posenc.data.documents import Document

ELSEWHERE = "POSENC_CACHE=FOLDER puts the cache elsewhere"
SECONDS_BETWEEN_LINES = 5.0
Item = TypeVar("Item")
Result = TypeVar("Result")


def say(text: str, *, start: str = "", end: str = "\n") -> None:
    """Print one line to stderr, which may be closed."""
    print(start + visible(text), file=screen(), end=end, flush=True)


@contextlib.contextmanager
def cache_lock(path: Path, doing: str, *, needed: int | None = None) -> Iterator[None]:
    """Hold a lock of the cache; a second process waits and says for what.

    Any OSError becomes a RunError that says path, bytes `needed` and free.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = file_lock(path)
        try:
            lock.acquire(timeout=1)
        except Timeout:
            say(f"waiting for another process that is {doing}")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()
    except OSError as error:
        raise cannot_write(path.parent, error, needed=needed, hint=ELSEWHERE) from error


def with_progress(
    documents: Iterator[Document], doing: str, most: str, *, by_split: bool = False
) -> Iterator[Document]:
    """Yield the documents; say how far it is on one line in a terminal, elsewhere every five seconds.

    `most` follows the megabytes (` of 200`). `by_split`: count each data set split (`split/row` ids) anew and
    say so however quick it was.
    """
    live = sys.stderr.isatty()
    began = last = time.monotonic()
    part, count, size, total, shown = "", 0, 0, 0, False

    def show(end: str) -> None:
        rate = total / 1e6 / max(time.monotonic() - began, 1e-9)
        where = f"{part}, " if part else ""
        text = f"{doing}: {where}{count:,} documents, {size / 1e6:,.1f}{most} MB, {rate:,.1f} MB/s"
        say(f"{text:<79}" if live else text, start="\r" if live else "", end=end)

    for document in documents:
        if by_split and document.id.partition("/")[0] != part:
            if count:
                show("\n")
            part, count, size = document.id.partition("/")[0], 0, 0
        count, size, total = count + 1, size + len(document.text), total + len(document.text)
        if time.monotonic() - last >= (1.0 if live else SECONDS_BETWEEN_LINES):
            last, shown = time.monotonic(), True
            show("" if live else "\n")
        yield document
    if total and (shown or by_split):
        show("\n")


def run_interruptible(work: Callable[[Iterable[Item]], Result], items: Iterable[Item], doing: str) -> Result:
    """Run `work(items)` of a library that handles no signals in a thread, so that Ctrl-C works.

    When this thread is interrupted, `items` ends in the other one, which dies with the process.
    """
    result: Future[Result] = Future()
    stopped = threading.Event()

    def until_stopped() -> Iterator[Item]:
        for item in items:
            if stopped.is_set():
                raise InterruptedError(doing)
            yield item

    def run() -> None:
        try:
            result.set_result(work(until_stopped()))
        except BaseException as error:
            result.set_exception(error)

    began = time.monotonic()
    thread = threading.Thread(target=run, daemon=True, name=DEAF)
    thread.start()
    try:
        while not wait([result], timeout=SECONDS_BETWEEN_LINES).done:
            say(f"{doing}: {time.monotonic() - began:.0f} seconds so far")
    except BaseException:
        stopped.set()
        thread.join(1)
        raise
    return result.result()
