"""Write results: atomic files, one small record a finished cell, results.json assembled from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import write_json_atomic, write_text_atomic
from posenc.core.errors import RunError, safe_name
from posenc.results.safe_read import read_file
from posenc.results.schema import SCHEMA_VERSION, Record, RunFacts, check_record

CELL = ("protocol", "window", "extend", "stride", "fingerprint", "split", "targets_hash", "checkpoint_step")


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


def find_record(
    run_dir: Path,
    *,
    protocol: str,
    window: int,
    extend: Mapping[str, Any] | None,
    stride: int | None,
    fingerprint: str,
    split: str,
    targets_hash: str,
    checkpoint_step: int,
) -> Record | None:
    """Return the stored record of this cell, or None where there is none, or only a damaged one."""
    cell = dict(zip(CELL, (protocol, window, extend, stride, fingerprint, split), strict=False))
    cell |= {"targets_hash": targets_hash, "checkpoint_step": checkpoint_step}
    try:
        record = _read_record(record_path(run_dir, cell))
    except (OSError, ValueError):
        return None
    return record if all(record.get(key) == value for key, value in cell.items()) else None


def read_records(run_dir: Path) -> list[Record]:
    """Return all records of a run, sorted by protocol, extension, stride, window and step.

    Raises RunError that names a damaged file.
    """
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
    curves = [
        {**{key: value for key, value in record.items() if key in named}, **record["curve"]}
        for record in records
        if "curve" in record
    ]
    if curves:
        write_json_atomic(
            Path(run_dir) / "positions.json", {"schema_version": SCHEMA_VERSION, "curves": curves}
        )
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
