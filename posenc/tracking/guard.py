"""Calls that may hang, and errors that may say too much: what keeps a tracker from harming the run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any


class GivenUpError(Exception):
    """A call did not come back in the time it was given; it may still be running."""


def within(seconds: float, action: Callable[[], Any]) -> Any:
    """`action()` in a thread of its own, given up after `seconds` with GivenUpError."""
    result: list[Any] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            result.append(action())
        except BaseException as error:
            failure.append(error)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(seconds)
    if failure:
        raise failure[0] if isinstance(failure[0], Exception) else RuntimeError(repr(failure[0]))
    if not result:
        raise GivenUpError(f"no answer within {seconds:g} s")
    return result[0]


def reason(error: BaseException) -> str:
    """What happened, on one line, without the key."""
    key = os.environ.get("WANDB_API_KEY")
    text = str(error).replace(key, "***") if key else str(error)
    words = one_line(text.partition("\n")[0])[:200]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def one_line(text: object) -> str:
    """`text` without line breaks or control characters."""
    return "".join(c if c.isprintable() else "?" for c in str(text))
