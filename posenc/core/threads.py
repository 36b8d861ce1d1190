"""Call a library that hears no signal, or may never return, so that posenc still does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
UNINTERRUPTIBLE_THREAD = "posenc: a library at work"  # the name of a thread that may outlive the command


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
