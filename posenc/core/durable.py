"""Files that are whole or absent after a crash: written under another name, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from pathlib import Path
from typing import Any

from filelock import FileLock

from posenc.core.errors import RunError
from posenc.core.processes import is_gone

CONTINUES = "what was saved before is intact; the same command continues once it can be written"
TEMPORARY = re.compile(r"\..+\.(\d+)-([0-9a-f]{8})-[0-9a-f]{8}\.tmp")
LONG_AGO = 600  # seconds; no write takes as long
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def canonical(value: Any) -> bytes:
    """JSON in one form only, so that equal values have equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest_of(value: Any) -> str:
    """sha256 (hex) of a plain value."""
    return hashlib.sha256(canonical(value)).hexdigest()


def sha256_of_file(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Have the disk take a file's bytes, or a folder's names; where folders cannot be synced, leave it."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError:
        if not path.is_dir():
            raise


@functools.cache
def this_host() -> str:
    """Eight hex digits: whose number of a process it is, in the name of a temporary file."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def temporary_for(path: Path) -> Path:
    """Where to write first what `path` is to hold."""
    return path.with_name(f".{path.name[:100]}.{os.getpid()}-{this_host()}-{secrets.token_hex(4)}.tmp")


def clear_temporaries(folder: Path) -> None:
    """Remove what a kill left between writing such a file and renaming it."""
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            found = TEMPORARY.fullmatch(path.name)
            if found is None:
                continue
            old = time.time() - path.lstat().st_mtime > LONG_AGO
            # of another host's processes nothing is known here
            if old or (found[2] == this_host() and is_gone(int(found[1]))):
                path.unlink()


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """A JSON file that carries the sha256 of its own content. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_temporaries(path.parent)
    temporary = temporary_for(path)
    try:
        temporary.write_bytes(canonical({"content": value, "sha256": digest_of(value)}))
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def read_sealed(path: Path) -> dict[str, Any] | None:
    """The content of such a file, or None when it is absent, damaged or not one."""
    try:
        sealed = json.loads(path.read_bytes())
        content: dict[str, Any] = sealed["content"]
        return content if sealed["sha256"] == digest_of(content) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def free_bytes(path: Path) -> int | None:
    """What may still be written where `path` is or would be; None where the system does not say."""
    for place in (path, *path.absolute().parents):
        try:
            return shutil.disk_usage(place).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def check_room(path: Path, needed: int, what: str, *, hint: str = "") -> None:
    """RunError with path, needed and free bytes when `what` (bytes `needed`) cannot fit where `path` is."""
    free = free_bytes(path)
    if free is not None and free < needed:
        raise RunError(f"not enough room in {path} for {what}", hint=_told(needed, free, hint))


def file_lock(path: Path, *, timeout: float = -1) -> FileLock:
    """A lock that the kernel releases when its holder dies; never one by the mere existence of a file."""
    return FileLock(path, timeout=timeout, fallback_to_soft=False)


def cannot_write(path: Path, error: OSError, *, needed: int | None = None, hint: str = "") -> RunError:
    """What to raise when the file system refuses; of a full one with the bytes `needed` and free."""
    if error.errno in NO_LOCKS:
        problem = f"the file system of {path} has no locks, and two writers would not notice each other"
        return RunError(problem, hint="put it on another one: runs_dir=FOLDER, POSENC_CACHE=FOLDER")
    full = error.errno in FULL
    told = _told(needed, free_bytes(path), hint) if full else hint
    return RunError(f"cannot write {path}: {error.strerror or error}", hint=told or None)


def _told(needed: int | None, free: int | None, hint: str) -> str:
    sizes = [
        f"{name}: {size:,} bytes" for name, size in (("needed", needed), ("free", free)) if size is not None
    ]
    return "\n".join(line for line in ("; ".join(sizes), hint) if line)
