"""Waiting that can be understood and stopped: for another process, for a library."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TypeVar

from filelock import Timeout

from posenc.core.atomic_files import file_lock
from posenc.core.errors import visible
from posenc.core.threads import UNINTERRUPTIBLE_THREAD
from posenc.data.watch import SECONDS_BETWEEN_LINES, tell

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextlib.contextmanager
def one_at_a_time(lock: Path, doing: str) -> Iterator[None]:
    """Others that want the same wait here, are told for what, and then find it done. Raises OSError."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    held = file_lock(lock)
    try:
        held.acquire(timeout=1)
    except Timeout:
        tell(f"waiting for another process that is {doing}")
        held.acquire()
    try:
        yield
    finally:
        held.release()


def heard(work: Callable[[Iterable[Item]], Result], items: Iterable[Item], doing: str) -> Result:
    """`work(items)` of a library that hears no signal until it is done: in a thread, so that this one does.

    When this one is stopped, `items` ends in the other; what the library does goes with the process.
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
    thread = threading.Thread(target=run, daemon=True, name=UNINTERRUPTIBLE_THREAD)
    thread.start()
    try:
        while not wait([result], timeout=SECONDS_BETWEEN_LINES).done:
            tell(f"{visible(doing)}: {time.monotonic() - began:.0f} seconds so far")
    except BaseException:
        stopped.set()
        thread.join(1)
        raise
    return result.result()
