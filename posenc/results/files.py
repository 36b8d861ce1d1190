"""Read files of runs that somebody else may have made: size is limited, and only plain data is read."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

# Of a bundle, a record or status.json. Without a limit, a file of somebody else could fill the memory of its
# reader.
LARGEST = 50_000_000  # bytes
LARGEST_RESULTS = 500_000_000  # bytes; 25 records of 2000 documents have 3 MB, 900 with extensions 60 MB
LARGEST_CONFIG = 1_000_000  # bytes

RESULTS_FILE = "results.json"  # all records of a run, and its facts


def read_file(folder: Path, name: str, largest: int = LARGEST) -> bytes | None:
    """Return the bytes of a file; None if it is missing or not a regular file. Raises ValueError, OSError."""
    path = folder / name
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
        return None
    if status.st_size > largest:
        raise ValueError(f"{name}: too large ({status.st_size} bytes, at most {largest})")
    return path.read_bytes()


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if it is missing. Raises ValueError, OSError."""
    text = read_file(folder, name)
    return None if text is None else parse_object(text, name)


def parse_object(text: bytes, name: str) -> dict[str, Any]:
    """Return the object that JSON text holds; `name` is for the error. Raises ValueError."""
    from pydantic_core import from_json

    try:
        data = from_json(text, allow_inf_nan=False)  # refuses more than 200 levels of nesting
    except ValueError as error:
        raise ValueError(f"{name}: damaged ({error})") from error
    if not isinstance(data, dict):
        raise ValueError(f"{name}: not an object")
    return data
