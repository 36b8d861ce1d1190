"""Lock run directories, so that one process at a time writes. The kernel releases the lock of a dead process.

Locks are not reliable on some network file systems.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import Timeout

from posenc.core.atomic_files import cannot_write, file_lock, write_text_atomic
from posenc.core.console import say
from posenc.core.errors import RunError, visible
from posenc.core.paths import exists
from posenc.results.files import read_file
from posenc.running.invocation import WAIT
from posenc.training.distributed import current

# The time is not 0, since `is_held` takes the lock for a moment, too.
SECONDS_TO_ACQUIRE = 0.5  # a lock is free at once, or another process is at work on the run


class HeldRunError(RunError):
    """Report that another process holds the run directory."""


@contextmanager
def locked(
    directory: Path, name: str = "run", *, seconds: float = SECONDS_TO_ACQUIRE, waits: bool = False
) -> Iterator[None]:
    """Hold a lock of the run directory, which is made if it does not exist.

    Raises HeldRunError with the holder's pid and host after `seconds`. With `waits` it waits for ever.
    """
    if not current().is_first:  # the first process holds it for all processes of the run
        yield
        return
    lock = file_lock(directory / f".{name}.lock")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            # The file outlives its writer, so the name may be that of an
            # earlier holder. It is only for the message.
            holder = holder_of(directory, name)
            if not waits:
                problem = f"{visible(directory)} is being written by another process ({holder})"
                raise HeldRunError(problem, hint=f"{WAIT}=1 in the environment waits for it") from None
            say(f"waiting for another process to finish {visible(directory)} ({holder})")
            lock.acquire()
    except OSError as error:
        raise cannot_write(directory, error) from error
    try:
        # not in the lock file: a process that tries to take the lock may empty that
        write_text_atomic(directory / f".{name}.holder", f"pid {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        lock.release()


def holder_of(directory: Path, name: str) -> str:
    """Return `pid N on HOST` of the last holder, safe to print."""
    with contextlib.suppress(OSError, ValueError):
        text = read_file(directory, f".{name}.holder", 1000)
        if text:
            return visible(text.decode("utf-8", "replace"))
    return "pid unknown"


def is_held(directory: Path, name: str) -> bool:
    """Tell whether a process holds the run directory now."""
    path = directory / f".{name}.lock"
    # Taking the lock would make this file, and a look must leave the directory as it is.
    if not exists(path):
        return False
    try:
        # Nobody can ask whether a lock of this kind (flock) is held. One can only try to take it.
        with file_lock(path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False  # a process that tries to take the lock will report the error
