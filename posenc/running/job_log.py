"""A run's log.txt, where a job and its sweep write down how it failed.

Also that of a stranger's run (`posenc eval`): no link is followed, and nothing but a file is written to.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

NAME = "log.txt"
FAILED = re.compile(r"^failed: (.*)$", re.M)
LARGEST = 100_000  # bytes that are read back of it
# not on Windows
GUARDED = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def size(directory: Path) -> int:
    """Bytes it has; 0 where there is none."""
    try:
        return (directory / NAME).lstat().st_size
    except OSError:
        return 0


def add(directory: Path, text: str, reason: str | None = None) -> None:
    """Text at its end, and the reason of a failure on a line of its own. Raises OSError."""
    if reason is not None:
        text += f"failed: {' '.join(reason.split())}\n"
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = _opened(directory, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def reason_since(directory: Path, offset: int) -> str | None:
    """The last reason that was added behind `offset`."""
    try:
        with os.fdopen(_opened(directory, os.O_RDONLY), "rb") as file:
            file.seek(max(offset, size(directory) - LARGEST))
            found = FAILED.findall(file.read(LARGEST).decode("utf-8", "replace"))
    except OSError:
        return None
    return str(found[-1]) if found else None


@contextlib.contextmanager
def crashes(directory: Path) -> Iterator[None]:
    """Where the process was when a signal such as SIGABRT or SIGSEGV ends it goes to the log."""
    if faulthandler.is_enabled():  # the user's own choice of a place
        yield
        return
    with os.fdopen(_opened(directory, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a") as file:
        faulthandler.enable(file)
        try:
            yield
        finally:
            faulthandler.disable()


def _opened(directory: Path, how: int) -> int:
    descriptor = os.open(directory / NAME, how | GUARDED, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{directory / NAME} is not a regular file")
    return descriptor
