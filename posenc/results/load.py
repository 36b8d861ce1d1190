"""Old home of names that moved; deleted once nobody imports it."""

from posenc.results.bundles import SUFFIX, bundled, load_bundle, packed, unpacked
from posenc.results.discovery import load_runs, run_places
from posenc.results.files import read_file, read_json
from posenc.results.records import assemble_results, find_record, read_records, write_record
from posenc.results.runs import Run, encoding_name, last_metrics, load_run, resume_command


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
