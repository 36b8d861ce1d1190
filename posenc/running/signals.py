"""Stop at SIGINT, SIGTERM, SIGHUP and SIGUSR1 (Slurm): end the step, save, exit with 130 or 143."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
if hasattr(signal, "SIGUSR1"):  # not on Windows
    CODES[signal.SIGUSR1] = 143
    CODES[signal.SIGHUP] = 143  # the terminal is gone
ONE_WISH = 1.0  # seconds in which signals count as one: a terminal, a sweep and a cluster may all send it


def to_take_over() -> list[int]:
    """Return the signals of CODES, without a hangup that nohup or a shell's disown has switched off."""
    hangup = getattr(signal, "SIGHUP", None)
    return [one for one in CODES if one != hangup or signal.getsignal(one) != signal.SIG_IGN]


def leave_at_a_signal(code: int) -> None:
    """Let a signal end the process at once with `code`: all is done, and torch takes 0.5 s to clear up."""
    for number in to_take_over():
        signal.signal(number, lambda *_: leave_at_once(code))


def leave_at_once(code: int) -> None:
    """Exit without Python's clearing up: with a library still at work in a thread, that is a SIGSEGV."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def ignore_signals() -> None:
    """Ignore signals at the very end, when handlers are no longer called."""
    for number in CODES:
        signal.signal(number, signal.SIG_IGN)


class InterruptedRunError(BaseException):
    """A stop was asked for, and what is finished so far is on disk.

    Not an Exception: it is raised anywhere, and a compiler or a library must not swallow it.
    """


class StopFlag:
    """Set by the first signal; a second one changes nothing, so that a save is never cut short.

    As a context manager it takes over the signals. Until `guard` is called there is nothing to save, and a
    signal raises InterruptedRunError wherever it strikes (tokenising, waiting).
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.elsewhere = False
        self.guarded = False
        self._last = -ONE_WISH
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            self._before = {number: signal.signal(number, self._handle) for number in to_take_over()}
            for handler in self._before.values():  # a signal that struck where Python swallows exceptions
                outer = getattr(handler, "__self__", None)
                if isinstance(outer, StopFlag):
                    self.received = self.received or outer.received
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number
        now = time.monotonic()
        again, self._last = now - self._last < ONE_WISH, now
        if not self.guarded and not again:
            raise InterruptedRunError

    def guard(self) -> None:
        """From here on there is something to save: a signal only sets the flag."""
        self.guarded = True
        self.check()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, all that is finished is saved: a signal raises where it strikes, as before `guard`."""
        before, self.guarded = self.guarded, False
        try:
            self.check()
            yield
        finally:
            self.guarded = before

    def asked_elsewhere(self) -> None:
        """Note that another process of this run was asked to stop."""
        self.elsewhere = True

    def requested(self) -> bool:
        """Tell whether a stop was asked for."""
        return self.received is not None or self.elsewhere

    def check(self) -> None:
        """Raise InterruptedRunError if a stop was asked for."""
        if self.requested():
            raise InterruptedRunError

    @property
    def exit_code(self) -> int:
        if self.received is None:
            return CODES[signal.SIGTERM] if self.elsewhere else 0
        return CODES[signal.Signals(self.received)]

    @property
    def name(self) -> str:
        if self.received is None:
            return "a signal to another process" if self.elsewhere else "a signal"
        return signal.Signals(self.received).name
