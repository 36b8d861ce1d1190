"""Files of a run directory that may be a stranger's: regular ones only, none too large, plain data."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

from posenc.results.plain_yaml import plain_yaml

LARGEST = 50_000_000  # bytes
LARGEST_RESULTS = 500_000_000  # 25 cells of 2000 documents have 3 MB; 900, with every extension, 60 MB
LARGEST_CONFIG = 1_000_000
SEED = re.compile(rb"^seed: (\d{1,18})\n", re.M)


def read_own_file(folder: Path, name: str, largest: int) -> bytes | None:
    """The bytes of a regular file of this folder; None where there is none. Raises ValueError, OSError."""
    path = folder / name
    if not os.path.lexists(path):
        return None
    real, root = (Path(os.path.realpath(one)) for one in (path, folder))
    if not real.is_relative_to(root):
        raise ValueError(f"{name}: a link that leaves the run directory")
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{name}: not a regular file")
    if facts.st_size > largest:
        raise ValueError(f"{name}: too large ({facts.st_size} bytes, at most {largest})")
    return path.read_bytes()


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """An object from a file of this folder; None where there is none. Raises ValueError, OSError."""
    text = read_own_file(folder, name, LARGEST)
    return None if text is None else parse_object(text, name)


def parse_object(text: bytes, name: str) -> dict[str, Any]:
    import orjson

    try:
        data = orjson.loads(text)  # no NaN, no infinity, no endless nesting; 3.5 times as fast as json
    except ValueError as error:
        raise ValueError(f"{name}: damaged ({error})") from error
    if not isinstance(data, dict):
        raise ValueError(f"{name}: not an object")
    return data


def read_config(folder: Path) -> dict[str, Any] | None:
    """config.yaml as plain data; None where there is none. Raises ValueError, OSError."""
    text = read_own_file(folder, "config.yaml", LARGEST_CONFIG)
    if text is None:
        return None
    seeds = list(SEED.finditer(text))
    if len(seeds) == 1:  # the seeds of one setting differ in this line alone: the rest is parsed once
        data = plain_yaml(text[: seeds[0].start()] + text[seeds[0].end() :])
        return None if data is None else {**data, "seed": int(seeds[0][1])}
    return plain_yaml(text)
