"""Let Ctrl-C end a library call that blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as futures_wait
from typing import TypeVar

LEFT_BEHIND = "posenc: a library at work"  # name of a thread that may outlive the command
T = TypeVar("T")


def run_interruptible(work: Callable[[], T], *, limit: float | None = None) -> T:
    """Run `work` in a thread and return its result. Ctrl-C ends the command without waiting for the thread.

    Raises TimeoutError after `limit` seconds.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        # Also SystemExit of a library: it would end this thread alone, and the caller would wait for ever.
        except BaseException as error:
            result.set_exception(error)

    # Python handles signals in the main thread alone, and not while a library in C blocks that thread. A wait
    # for another thread can be interrupted. A daemon does not keep Python from ending.
    threading.Thread(target=run, daemon=True, name=LEFT_BEHIND).start()
    finished, _ = futures_wait([result], timeout=limit)
    if not finished:
        raise TimeoutError(f"no answer in {limit:g} s")
    return result.result()


def library_at_work() -> bool:
    """Tell whether a thread of `run_interruptible` was left behind."""
    return any(thread.name == LEFT_BEHIND for thread in threading.enumerate())
