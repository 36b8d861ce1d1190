"""Stop at SIGINT, SIGTERM, SIGHUP and SIGUSR1 (Slurm): end the step, save, exit with 130 or 143.

Also the environment variables by which a command speaks to its jobs, and what it says when it ends early.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from posenc.core.console import say
from posenc.core.errors import RunError, UserError, first_line

WAIT = "POSENC_WAIT"  # 1: wait for a run that another process holds, instead of refusing
SWEEP = "POSENC_SWEEP"  # the sweep's name
RETRY = "POSENC_RETRY"  # set: a run that diverged is trained again (--retry)
PARENT = "POSENC_PARENT"  # the process of the sweep that started this one
DEBUG = "HYDRA_FULL_ERROR"  # 1: tracebacks, as for Hydra (--debug)

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGHUP: 143}
ONE_WISH = 1.0  # seconds in which signals count as one: a terminal, a sweep and a cluster may all send it


def debugging() -> bool:
    """Tell whether tracebacks are asked for."""
    return os.environ.get(DEBUG) == "1"


def to_take_over() -> list[int]:
    """Return the signals of CODES, without a hangup that nohup or a shell's disown has switched off."""
    return [one for one in CODES if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]


def leave_at_once(code: int) -> None:
    """Exit without Python's clearing up: with a library still at work in a thread, that is a SIGSEGV."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def stop_with_parent() -> None:
    """Raise SIGTERM once the sweep that started this process is gone: a killed one passes none on."""
    parent = os.environ.pop(PARENT, None)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def ignore_signals() -> None:
    """Ignore signals: all is done, and what is left is the half second that torch takes to clear up."""
    for number in CODES:
        signal.signal(number, signal.SIG_IGN)


class InterruptedRunError(BaseException):
    """A stop was asked for, and what is finished so far is on disk.

    Not an Exception: it is raised anywhere, and a compiler or a library must not swallow it.
    """

    status = "interrupted"


class StopFlag:
    """Set by the first signal; a second one changes nothing, so that a save is never cut short.

    As a context manager it takes over the signals. Until `guard` is called there is nothing to save, and a
    signal raises InterruptedRunError wherever it strikes (tokenising, waiting).
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.elsewhere = False  # another process of this run was asked to stop
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


def report_error(error: BaseException, stop: StopFlag) -> int:
    """Print on stderr why the command ends; return its exit code."""
    if isinstance(error, InterruptedRunError):
        if os.environ.get("RANK", "0") == "0":  # of several processes the first one speaks
            say(f"{stop.name}: stopped; what is on disk stays; the same command begins again")
        return stop.exit_code or CODES[signal.SIGTERM]  # it struck while another flag held the signals
    shown = error if isinstance(error, UserError | RunError) else _by_the_machine(error)
    if shown is None:
        file, line, *_ = traceback.extract_tb(error.__traceback__)[-1]
        hint = f"a fault of posenc or of a plug-in, at {file}:{line}; --debug shows all"
        shown = RunError(f"{type(error).__name__}: {error}", hint=hint)
    say(shown.text())
    return shown.exit_code


def _by_the_machine(error: BaseException) -> RunError | None:
    """Return the error to show if the machine lacks something, rather than posenc being wrong."""
    if isinstance(error, OSError) and not error.filename:
        if error.errno in (errno.ENOSPC, errno.EPIPE):
            return RunError(f"cannot write the output: {error.strerror}")
        if error.errno == errno.ENOENT:  # no file is named where os.getcwd fails
            return RunError("the working folder is gone", hint="cd into one that is there")
    if isinstance(error, MemoryError) or "allocate memory" in str(error):  # of the system, of torch
        return RunError(f"not enough memory: {first_line(error)}", hint="a smaller model, length or batch")
    return None
