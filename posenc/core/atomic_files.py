"""Write files that are whole or absent after a crash: under another name, synced, renamed.

This module also locks files, measures free space, and explains the errors of a disk.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from posenc.core.errors import RunError
from posenc.core.paths import exists

CONTINUES = "what was saved before is intact; the same command continues once it can be written"
WRITES_AGAIN = "nothing is left of it; the same command writes it once it can be written"
NO_LOCK_ERRNOS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
FULL_DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
LONGEST_STEM = 100  # bytes of a file's name in its temporary name; file systems take 255 in all


def write_bytes_atomic(path: Path, data: bytes) -> None:
    """Write a file that has the old or the new content, also after a power cut. Raises RunError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_beside(path)
        try:
            # `x` refuses a name that exists. The rename works only within one file system, hence the same
            # folder.
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        # The folder holds the name. Until the folder is on the disk, a power cut may bring the old file back.
        sync(path.parent)
    except OSError as error:
        raise cannot_write(path, error, needed=len(data), hint=CONTINUES) from error


@contextmanager
def renamed_when_whole(temporary: Path, path: Path) -> Iterator[None]:
    """Make the folder `temporary`, and rename it to `path` once the files in it are written and synced.

    Both are in one folder, which is made if needed. `path` does not exist at the end, or is an empty folder.
    No other process uses the name `temporary`: what is under it was left by a killed one, and goes.
    Raises OSError.
    """
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        sync(path.parent.parent)  # the folder of `path` may be new
        yield
        # Files first, then their folder, then its new name: a power cut at any time leaves no folder with
        # half a file under its final name.
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def folder_written_whole(path: Path, needed: int) -> Iterator[Path]:
    """Yield a new folder for files, which is renamed to `path` as by renamed_when_whole.

    It needs no lock: its name is that of this process. `needed` estimates the bytes of the files. Raises
    RunError.
    """
    try:
        temporary = temporary_beside(path)
        with renamed_when_whole(temporary, path):
            yield temporary
    except OSError as error:
        raise cannot_write(path, error, needed=needed, hint=WRITES_AGAIN) from error


def temporary_beside(path: Path) -> Path:
    """Return a new name in the folder of `path`, and remove what killed processes left under such names."""
    # the name holds host and process, so that files of running processes stay
    host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
    stem = os.fsdecode(os.fsencode(path.name)[:LONGEST_STEM])  # a character may take four bytes
    prefix = f".{stem}.posenc-{host}-"
    for leftover in path.parent.glob(f"{glob.escape(prefix)}*.tmp"):
        writer = leftover.name.removeprefix(prefix).partition("-")[0]
        if not _is_running(writer):
            remove(leftover)
    return path.with_name(f"{prefix}{os.getpid()}-{secrets.token_hex(8)}.tmp")


def _is_running(pid: str) -> bool:
    """Tell whether a process of this machine has this number; True for a text that is no number."""
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    # Another user's process may not be signalled, but it is there. In doubt a file stays.
    except (ValueError, OverflowError, PermissionError):
        return True
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder, as far as the disk permits."""
    # A link to a folder is removed itself, never what it leads to.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def why_not_writable(folder: Path) -> str | None:
    """Return why the system makes nothing in a folder, by making one there for a moment; None if it does.

    A full disk is no reason: whoever writes a file says how much room is needed.
    """
    # os.access says yes to root in /proc, where nothing can be made.
    try:
        probe = temporary_beside(folder / "probe")
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        if error.errno in FULL_DISK_ERRNOS:
            return None
        return error.strerror or str(error)
    return None


def write_text_atomic(path: Path, text: str) -> None:
    """Write `text` as UTF-8, as write_bytes_atomic."""
    # A name of a file that is not UTF-8 reaches Python with lone surrogates, which UTF-8 does not have. They
    # become escapes.
    write_bytes_atomic(path, text.encode("utf-8", "backslashreplace"))


def write_json_atomic(path: Path, data: object) -> None:
    """Write plain JSON, as write_bytes_atomic. Raises ValueError on NaN or infinity."""
    write_text_atomic(path, json.dumps(data, indent=2, allow_nan=False) + "\n")


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file that carries the sha256 of its content, as write_bytes_atomic."""
    write_bytes_atomic(path, sealed(value))


def sealed(value: dict[str, Any]) -> bytes:
    """Return the bytes of a sealed file, for read_sealed."""
    return canonical({"content": value, "sha256": digest_of(value)})


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return the content of a sealed file, or None if it is absent or damaged."""
    try:
        stored = json.loads(path.read_bytes())
        content: dict[str, Any] = stored["content"]
        return content if stored["sha256"] == digest_of(content) else None
    # What is damaged is made again by the caller, so that it makes no difference how it is damaged.
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def canonical(value: Any) -> bytes:
    """Return JSON in a single form, so that equal values have equal hashes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest_of(value: Any) -> str:
    """Return the sha256 (hex) of a plain value."""
    return hashlib.sha256(canonical(value)).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the sha256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file's bytes, or a folder's names, to the disk. A folder that cannot be synced is ignored."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    # Some file systems cannot sync a folder. The file itself is on the disk by then.
    except OSError:
        if not path.is_dir():
            raise


def file_lock(path: Path, *, timeout: float = -1) -> FileLock:
    """Return a lock that the kernel releases when its holder dies (flock)."""
    # Without flock the library would fall back to a file that exists while the lock is held. A killed process
    # leaves it behind, and another machine cannot tell that its holder is dead.
    return FileLock(path, timeout=timeout, fallback_to_soft=False)


def free_bytes(path: Path) -> int:
    """Return the free bytes of the disk where `path` is or would be."""
    # The folder may not exist yet, and shutil.disk_usage raises for a path that does not.
    existing = next(folder for folder in (path, *path.absolute().parents) if exists(folder))
    return shutil.disk_usage(existing).free


def check_room(path: Path, needed: int, what: str, *, hint: str = "") -> None:
    """Raise RunError with path, needed and free bytes if `what` does not fit where `path` is."""
    if free_bytes(path) < needed:
        raise RunError(f"not enough room in {path} for {what}", hint=_with_sizes(hint, path, needed))


def cannot_write(path: Path, error: OSError, *, needed: int | None = None, hint: str = "") -> RunError:
    """Return the error for a file system that refuses, with needed and free bytes if the disk is full."""
    if error.errno in NO_LOCK_ERRNOS:
        problem = f"the file system of {path} has no locks, and two writers would not notice each other"
        return RunError(problem, hint="put it on another one: runs_dir=FOLDER, POSENC_CACHE=FOLDER")
    if error.errno in FULL_DISK_ERRNOS:
        hint = _with_sizes(hint, path, needed)
    return RunError(f"cannot write {path}: {error.strerror or error}", hint=hint)


def _with_sizes(hint: str, path: Path, needed: int | None) -> str:
    """Return a hint with needed and free bytes in front."""
    sizes = f"free: {free_bytes(path):,} bytes"
    if needed is not None:
        sizes = f"needed: {needed:,} bytes; {sizes}"
    return f"{sizes}\n{hint}"
