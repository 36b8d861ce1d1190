"""Allow one writer of a run directory: locks that the kernel releases when their holder dies."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from posenc.core.atomic_files import cannot_write, file_lock, write_text_atomic
from posenc.core.console import say
from posenc.core.errors import RunError, visible
from posenc.results.store import read_file
from posenc.running.signals import WAIT
from posenc.training.distributed import current


class HeldRunError(RunError):
    """Another process holds the run directory."""


@contextmanager
def locked(directory: Path, name: str = "run") -> Iterator[None]:
    """Hold the run directory, made if need be; HeldRunError with the holder's pid and host within a second.

    With POSENC_WAIT=1 in the environment it waits instead. Not reliable on some network file systems.
    """
    if not current().is_first:
        yield
        return
    lock = file_lock(directory / f".{name}.lock")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _acquire(lock, directory, name)
    except OSError as error:
        raise cannot_write(directory, error) from error
    try:
        # not in the lock file, which whoever tries to take it may empty
        write_text_atomic(directory / f".{name}.holder", f"pid {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, directory: Path, name: str) -> None:
    try:
        lock.acquire(timeout=0.5)
    except Timeout:
        holder = holder_of(directory, name)
        if os.environ.get(WAIT) != "1":
            hint = f"{WAIT}=1 in the environment waits for it"
            problem = f"{visible(directory)} is being written by another process ({holder})"
            raise HeldRunError(problem, hint=hint) from None
        say(f"waiting for another process to finish {visible(directory)} ({holder})")
        lock.acquire()


def holder_of(directory: Path, name: str) -> str:
    """Return `pid N on HOST` of the last holder, safe to print."""
    try:
        text = read_file(directory, f".{name}.holder", 1000)
    except (OSError, ValueError):
        text = None
    return visible((text or b"pid unknown").decode("utf-8", "replace"))


def is_held(directory: Path, name: str) -> bool:
    """Tell whether a process holds it now."""
    path = directory / f".{name}.lock"
    if not path.exists():
        return False
    try:
        with file_lock(path, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False  # whoever takes it will say why


@contextmanager
def results_lock(directory: Path) -> Iterator[None]:
    """Hold results.json: `train` and `eval` may end at the same time. RunError after a minute."""
    lock = file_lock(directory / ".results.lock", timeout=60)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunError(f"another process has held {lock.lock_file} for a minute") from error
    except OSError as error:
        raise cannot_write(directory / ".results.lock", error) from error
    try:
        yield
    finally:
        lock.release()
