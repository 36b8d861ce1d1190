"""What is said when a command ends early, and the exit code: 2 wrong input, 1 failed, 130 or 143 stopped."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

from posenc.core.console import screen
from posenc.core.errors import RunError, UserError
from posenc.running.signals import CODES, InterruptedRunError, StopFlag

# What the loader of libraries says. Not "in static TLS block", which is no matter of size.
NO_ROOM_TO_LOAD = ("failed to map segment", "annot allocate memory: ", "object: Cannot allocate memory")


def told_exit_code(error: BaseException, stop: StopFlag) -> int:
    """Says on stderr why the command ends."""
    if isinstance(error, InterruptedRunError):
        if os.environ.get("RANK", "0") == "0":  # of several processes the first one speaks
            again = "what is on disk stays; the same command begins again"
            print(f"{stop.name}: stopped; {again}", file=screen(), flush=True)
        return stop.exit_code or CODES[signal.SIGTERM]  # it struck while another flag held the signals
    told = error if isinstance(error, UserError | RunError) else _surroundings(error)
    if told is None:
        fault = f"{type(error).__name__}: {error}"
        told = RunError(fault, hint="this is a fault of posenc; --debug shows where")
    print(told.text(), file=screen(), flush=True)
    return told.exit_code


def _surroundings(error: BaseException) -> RunError | None:
    """What the machine lacks rather than posenc."""
    if isinstance(error, OSError) and not error.filename:
        if error.errno in (errno.ENOSPC, errno.EPIPE):
            return RunError(f"cannot write the output: {error.strerror}")
        if error.errno == errno.ENOENT and not _has_working_folder():
            return RunError("the working folder is gone", hint="cd into one that is there")
        if error.errno == errno.ENOMEM:
            return _no_memory(error)
    if isinstance(error, ImportError | OSError) and any(words in str(error) for words in NO_ROOM_TO_LOAD):
        return _no_memory(error)
    if isinstance(error, MemoryError):
        return _no_memory(error)
    return None


def _no_memory(error: BaseException) -> RunError:
    said = f": {error}" if str(error) else ""
    return RunError(f"not enough memory{said}", hint="a smaller model or batch; ulimit -v tells a limit")


def _has_working_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True
