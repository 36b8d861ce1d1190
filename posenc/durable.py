"""Files that are whole or absent after a crash: written under another name, synced, renamed."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


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


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """A JSON file that carries the sha256 of its own content. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
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
