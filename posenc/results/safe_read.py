"""Read files that may be a stranger's: regular files only, none too large, plain data."""

from __future__ import annotations

import functools
import os
import re
import stat
from pathlib import Path
from typing import Any

LARGEST = 50_000_000  # bytes
LARGEST_RESULTS = 500_000_000  # 25 cells of 2000 documents have 3 MB; 900, with every extension, 60 MB
LARGEST_CONFIG = 1_000_000
DEEPEST = 20  # levels of nesting; settings have three
SEED = re.compile(rb"^seed: (\d{1,18})\n", re.M)
# a pipe would block for ever, and a link may point at any file of the reader's
FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def read_file(folder: Path, name: str, largest: int = LARGEST) -> bytes | None:
    """Return the bytes of a regular file; None where there is none. Raises ValueError, OSError."""
    path = folder / name
    try:
        handle = os.open(path, FLAGS)
    except FileNotFoundError:
        return None
    except OSError as error:
        if path.is_symlink():
            raise ValueError(f"{name}: a link, which is not followed") from error
        raise
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError(f"{name}: not a regular file")
        if facts.st_size > largest:
            raise ValueError(f"{name}: too large ({facts.st_size} bytes, at most {largest})")
        return file.read()


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the object in a JSON file; None where there is none. Raises ValueError, OSError."""
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


def read_config(run_dir: Path) -> dict[str, Any] | None:
    """Return config.yaml as plain data; None where there is none. Raises ValueError, OSError."""
    text = read_file(run_dir, "config.yaml", LARGEST_CONFIG)
    if text is None:
        return None
    seeds = list(SEED.finditer(text))
    if len(seeds) == 1:  # the seeds of one setting differ in this line alone: the rest is parsed once
        data = plain_yaml(text[: seeds[0].start()] + text[seeds[0].end() :])
        return None if data is None else {**data, "seed": int(seeds[0][1])}
    return plain_yaml(text)


@functools.lru_cache(maxsize=256)
def plain_yaml(text: bytes) -> dict[str, Any] | None:
    """Return the mapping that YAML text holds, None where it is something else. Raises ValueError."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast
    try:
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent):  # a few lines of aliases stand for billions of nodes
                raise ValueError("aliases are not used in a resolved configuration")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:  # 64,000 open brackets end in a segmentation fault of libyaml's composer
                raise ValueError("nested too deep")
        data = yaml.load(text, Loader=loader)
    except Exception as error:  # the loader's own, and its constructors' on `!!int ''`
        raise ValueError(f"config.yaml: damaged ({(str(error) or 'no YAML').splitlines()[0]})") from error
    if not _is_plain(data):
        raise ValueError("config.yaml: holds more than text, numbers, lists and mappings")
    return data if isinstance(data, dict) else None


def _is_plain(value: object) -> bool:
    """Return whether it is what JSON holds: YAML also has dates, sets and bytes."""
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bool | int | float)
