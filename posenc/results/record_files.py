"""Keep the records of a run on disk.

Each lies in a file of its own below records/, written as soon as it is measured, and all of them together are
results.json.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import write_json_atomic, write_text_atomic
from posenc.core.errors import RunError, safe_name
from posenc.results.files import RESULTS_FILE, read_file
from posenc.results.record_making import RecordKey
from posenc.results.records import Record, check_record
from posenc.settings.tree import SCHEMA_VERSION


def record_path(run_dir: Path, key: RecordKey) -> Path:
    """Return `records/<protocol>-W<window>[-S<stride>][-<extend>]-step<N>-<hash of the key>.json`."""
    text = json.dumps(key.values(), sort_keys=True, allow_nan=False)
    # The readable parts are for people. Two keys may share them, and the hash tells their files apart.
    parts = [safe_name(key.protocol), f"W{key.window}"]
    if key.stride is not None:
        parts.append(f"S{key.stride}")
    if key.extend is not None:
        parts.append(safe_name(str(key.extend["name"])))
    parts.append(f"step{key.checkpoint_step}")
    parts.append(hashlib.sha256(text.encode()).hexdigest()[:8])
    return Path(run_dir) / "records" / ("-".join(parts) + ".json")


def write_record(run_dir: Path, record: Record) -> Path:
    """Write one record, replacing the one of the same key; return its path. Raises as write_json_atomic."""
    path = record_path(run_dir, RecordKey.of(record))
    write_text_atomic(path, json.dumps(record, allow_nan=False) + "\n")
    return path


def find_record(run_dir: Path, key: RecordKey) -> Record | None:
    """Return the stored record of this key; None without one, and where it is damaged."""
    try:
        record = _read_record(record_path(run_dir, key))
    # A damaged record counts as missing and is measured anew. To stop here would cost the whole evaluation.
    except (OSError, ValueError):
        return None
    # The name of the file has eight digits of a hash alone, so the key in the record has the last word.
    return record if RecordKey.of(record) == key else None


def read_records(run_dir: Path) -> list[Record]:
    """Return all records of a run in a fixed order. Raises RunError that names a damaged file."""
    records = []
    # Names that begin with a dot are temporary files of a writer that may still be at work
    # (core/atomic_files.py).
    for path in sorted((Path(run_dir) / "records").glob("[!.]*.json")):
        try:
            records.append(_read_record(path))
        except (OSError, ValueError) as error:
            hint = "delete this file and run the same command again: only that record is measured anew"
            raise RunError(f"damaged record {path}: {error}", hint=hint) from error
    return sorted(records, key=_order)


def assemble_results(run_dir: Path, run_facts: Mapping[str, Any]) -> Path:
    """Write results.json from records/, a record a line; return its path. Raises as read_records.

    The curves of the protocol `positions` are written to positions.json as well.
    """
    records = read_records(run_dir)
    curves = [_with_curve(record) for record in records if "curve" in record]
    if curves:
        positions = {"schema_version": SCHEMA_VERSION, "curves": curves}
        write_json_atomic(Path(run_dir) / "positions.json", positions)
    # With `indent` each number of `per_document` would have a line of its own.
    lines = [json.dumps(record, allow_nan=False) for record in records]
    body = "[\n    " + ",\n    ".join(lines) + "\n  ]" if lines else "[]"
    head = json.dumps({"schema_version": SCHEMA_VERSION, "run": run_facts}, indent=2, allow_nan=False)
    path = Path(run_dir) / RESULTS_FILE
    write_text_atomic(path, head.removesuffix("\n}") + f',\n  "records": {body}\n}}\n')
    return path


def _with_curve(record: Record) -> dict[str, Any]:
    """Return a curve and what it is of, as positions.json has it."""
    fields = {*RecordKey.names(), "corpus", "multiple", "documents"}
    about = {key: value for key, value in record.items() if key in fields}
    return {**about, **record["curve"]}


def _read_record(path: Path) -> Record:
    """Return the record in a file. Raises OSError, ValueError."""
    return check_record(read_file(path.parent, path.name) or b"")


def _order(record: Record) -> tuple[Any, ...]:
    extend = "" if record["extend"] is None else json.dumps(record["extend"], sort_keys=True)
    return (
        record["protocol"],
        extend,
        record["stride"] or 0,
        record["window"],
        record["checkpoint_step"],
        record["fingerprint"],
        record["split"],
        record["targets_hash"],
        record.get("precision") or "",
    )
