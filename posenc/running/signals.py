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

from posenc.core.first_signals import CODES, leave
from posenc.core.run_states import INTERRUPTED
from posenc.running.invocation import PARENT

# Seconds in which several signals count as one. Ctrl-C reaches every process of a terminal, and a sweep or a
# cluster then passes it on; the second copy must not strike the code that cleans up after the first.
ONE_WISH = 1.0


def to_take_over() -> list[int]:
    """Return the signals to handle: those of CODES, without a hangup that nohup or disown ignores."""
    hangup_is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in CODES if not (number == signal.SIGHUP and hangup_is_ignored)]


def leave_at_once(code: int) -> None:
    """Exit without Python's clearing up, which crashes (SIGSEGV) while a library works in a thread."""
    # os._exit flushes nothing, and a result that was printed into a pipe would be lost.
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def stop_with_parent() -> None:
    """Send SIGTERM to this process once the sweep that started it is gone."""
    # a killed sweep passes no signal on; popped, as processes that this one starts have another parent
    parent = os.environ.pop(PARENT, None)
    if parent is None:
        return

    # A look each second, since macOS has no signal for the death of a parent.
    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(1)
        # A signal and not an exception: this is no main thread, and only the main thread has a run to save.
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def ignore_signals() -> None:
    """Ignore signals once all work is done, while torch takes half a second to clear up."""
    for number in CODES:
        signal.signal(number, signal.SIG_IGN)


def _is_importing(frame: FrameType | None) -> bool:
    """Tell whether a module is being imported at this moment."""
    while frame is not None:
        # Every import goes through this module, which is frozen into Python, so some frame above is of it.
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


class InterruptedRunError(BaseException):
    """Report that a stop was requested, and that what is finished so far is on disk.

    It is not an Exception: it may be raised anywhere, and a compiler or a library must not swallow it.
    """

    # `run_directory.status_after` reads it.
    status = INTERRUPTED


class StopFlag:
    """Remember the first signal. Once `guard` was called, a second one never cuts a save short.

    As a context manager it takes over the signals. Until `guard` is called there is nothing to save, and a
    signal raises InterruptedRunError wherever it strikes (tokenising, waiting). While `has_begun` is False,
    a signal in the middle of an import ends the process at once.
    """

    def __init__(self, *, has_begun: bool = True) -> None:
        self.has_begun = has_begun  # whether there is anything to clear up
        self.received: int | None = None
        self.elsewhere = False  # another process of this run was asked to stop
        self.guarded = False
        self._last_signal_at = -ONE_WISH
        self._handlers_before: dict[int, Any] = {}

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            self._handlers_before = {number: signal.signal(number, self._handle) for number in to_take_over()}
            for handler in self._handlers_before.values():
                outer = getattr(handler, "__self__", None)
                if isinstance(outer, StopFlag):
                    # it may have raised where Python swallows exceptions, such as in a finalizer
                    self.received = self.received or outer.received
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # The first signal decides the exit code and the line that is printed, whatever comes after it.
        self.received = self.received or number
        now = time.monotonic()
        is_copy = now - self._last_signal_at < ONE_WISH
        self._last_signal_at = now
        if not self.guarded and not is_copy:
            if not self.has_begun and _is_importing(frame):
                leave(number)  # an exception may strike where the import system swallows it, and prints it
            raise InterruptedRunError

    def guard(self) -> None:
        """Let signals only set the flag from here on, as there is something to save."""
        self.guarded = True
        # A signal may have come already in a place where Python swallows exceptions.
        self.check()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let signals raise at once inside the block, as before `guard`: all that is finished is saved."""
        guarded_before = self.guarded
        self.guarded = False
        try:
            self.check()
            yield
        finally:
            self.guarded = guarded_before

    def requested(self) -> bool:
        """Tell whether a stop was requested."""
        return self.received is not None or self.elsewhere

    def check(self) -> None:
        """Raise InterruptedRunError if a stop was requested."""
        if self.requested():
            raise InterruptedRunError

    @property
    def exit_code(self) -> int:
        """Return 130 or 143 after a signal, 0 without one."""
        if self.received is not None:
            return CODES[signal.Signals(self.received)]
        # Nobody tells which signal the other process got.
        return CODES[signal.SIGTERM] if self.elsewhere else 0

    @property
    def name(self) -> str:
        """Return the signal's name, for the line that says why the command ends."""
        if self.received is not None:
            return signal.Signals(self.received).name
        return "a signal to another process" if self.elsewhere else "a signal"
