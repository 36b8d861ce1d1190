"""Old home of names that moved; deleted once nobody imports it."""

from pathlib import Path
from typing import Any

from posenc.results.bundles import SUFFIX, bundled, load_bundle, packed, unpacked
from posenc.results.discovery import load_runs, run_places
from posenc.results.files import read_file, read_json
from posenc.results.records import (
    Record,
    RecordKey,
    assemble_results,
    read_records,
    write_record,
)
from posenc.results.records import find_record as find_record_of
from posenc.results.runs import Run, encoding_name, last_metrics, load_run, resume_command


def find_record(run_dir: Path, **cell: Any) -> Record | None:
    """The signature of before."""
    return find_record_of(run_dir, RecordKey(**cell))


def spoken_name(encoding: object) -> str | None:
    return encoding_name(encoding)


def encoding_of(run: Run) -> str | None:
    return run.encoding


__all__ = [
    "SUFFIX",
    "Run",
    "assemble_results",
    "bundled",
    "encoding_of",
    "find_record",
    "last_metrics",
    "load_bundle",
    "load_run",
    "load_runs",
    "packed",
    "read_file",
    "read_json",
    "read_records",
    "resume_command",
    "run_places",
    "spoken_name",
    "unpacked",
    "write_record",
]
