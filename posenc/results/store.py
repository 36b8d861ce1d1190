"""Files of a run directory: records and results.json written atomically, others' files read as plain data.

They may be a stranger's: regular files only, none too large, nothing is executed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import write_json_atomic, write_text_atomic
from posenc.core.errors import RunError, safe_name
from posenc.results.schema import SCHEMA_VERSION, Record, RunFacts, check_record

CELL = ("protocol", "window", "extend", "stride", "fingerprint", "split", "targets_hash", "checkpoint_step")
LARGEST = 50_000_000  # bytes
LARGEST_RESULTS = 500_000_000  # 25 cells of 2000 documents have 3 MB; 900, with every extension, 60 MB
LARGEST_CONFIG = 1_000_000
DEEPEST = 20  # levels of nesting; settings have three
SEED = re.compile(rb"^seed: (\d{1,18})\n", re.M)
# a pipe would block for ever, and a link may point at any file of the reader's
FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def record_path(run_dir: Path, cell: Mapping[str, Any]) -> Path:
    """Return `records/<protocol>-W<window>[-S<stride>][-<extend>]-step<N>-<hash>.json`.

    `cell` is a record, or the eight fields that identify one (CELL); the hash is of all eight.
    """
    identity = json.dumps([cell[key] for key in CELL], sort_keys=True, allow_nan=False)
    parts = [safe_name(cell["protocol"]), f"W{int(cell['window'])}"]
    if cell["stride"] is not None:
        parts.append(f"S{int(cell['stride'])}")
    if cell["extend"] is not None:
        parts.append(safe_name(str(cell["extend"].get("name", "extend"))))
    parts += [f"step{int(cell['checkpoint_step'])}", hashlib.sha256(identity.encode()).hexdigest()[:8]]
    return Path(run_dir) / "records" / ("-".join(parts) + ".json")


def write_record(run_dir: Path, record: Record) -> Path:
    """Write one finished cell, replacing the same cell; return its path. Raises as write_json_atomic."""
    path = record_path(run_dir, record)
    write_text_atomic(path, json.dumps(record, allow_nan=False) + "\n")
    return path


def find_record(run_dir: Path, **cell: Any) -> Record | None:
    """Return the stored record of this cell (the fields of CELL), or None; a damaged one is none."""
    try:
        record = _read_record(record_path(run_dir, cell))
    except (OSError, ValueError):
        return None
    return record if all(record.get(key) == cell[key] for key in CELL) else None


def read_records(run_dir: Path) -> list[Record]:
    """Return all records of a run in a fixed order. Raises RunError that names a damaged file."""
    records = []
    for path in sorted((Path(run_dir) / "records").glob("[!.]*.json")):
        try:
            records.append(_read_record(path))
        except (OSError, ValueError) as error:
            hint = "delete this file and run the same command again: only that cell is evaluated anew"
            raise RunError(f"damaged record {path}: {error}", hint=hint) from error
    return sorted(records, key=_order)


def assemble_results(run_dir: Path, run_facts: RunFacts) -> Path:
    """Write results.json from records/, a record a line; return its path. Raises as read_records.

    The curves of the protocol `positions` are written to positions.json as well.
    """
    records = read_records(run_dir)
    named = (*CELL, "corpus", "multiple", "documents")
    if curved := [record for record in records if "curve" in record]:
        curves = [{**{key: value for key, value in r.items() if key in named}, **r["curve"]} for r in curved]
        positions = {"schema_version": SCHEMA_VERSION, "curves": curves}
        write_json_atomic(Path(run_dir) / "positions.json", positions)
    lines = [json.dumps(record, allow_nan=False) for record in records]
    head = json.dumps({"schema_version": SCHEMA_VERSION, "run": run_facts}, indent=2, allow_nan=False)
    body = "[\n    " + ",\n    ".join(lines) + "\n  ]" if lines else "[]"
    path = Path(run_dir) / "results.json"
    write_text_atomic(path, head.removesuffix("\n}") + f',\n  "records": {body}\n}}\n')
    return path


def _read_record(path: Path) -> Record:
    """Return the record in a file. Raises OSError, ValueError."""
    text = read_file(path.parent, path.name)
    if text is None:
        raise FileNotFoundError(path.name)
    return check_record(text)


def _order(record: Record) -> tuple[Any, ...]:
    extend = "" if record["extend"] is None else json.dumps(record["extend"], sort_keys=True)
    place = (record["protocol"], extend, record["stride"] or 0, record["window"], record["checkpoint_step"])
    return (*place, record["fingerprint"], record["split"], record["targets_hash"])


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
