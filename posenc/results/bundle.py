"""Many runs' results in one small file, without weights: to keep beside a paper, and to compare from.

A bundle is gzipped JSON lines: a head, then for each run its status, settings, results and training losses.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from posenc.results.losses import losses_of, to_keep
from posenc.results.records import SCHEMA_VERSION

if TYPE_CHECKING:
    from posenc.results.load import Run

SUFFIX = ".runs.jsonl.gz"
HEAD = "posenc_bundle"
DIGITS = 7  # of the sums by document: a table shows three to five, and the others do not compress
MOST_RUNS = 20_000  # a line of three bytes would make a run of a thousand
MOST_PACKED = 50  # times smaller than what is in it; real ones are 5 to 10 times
KEPT = ("status", "reason", "step", "versions", "git_commit", "started", "updated")


def bundled(run: Run) -> bytes:
    """A run as a line of a bundle: no host, no process; of its owner's folders only those of `data.paths`.

    One that diverged before it was measured has no results.
    """
    config = {key: value for key, value in (run.config or {}).items() if key != "runs_dir"}
    records = [{**record, "per_document": _rounded(record["per_document"])} for record in run.records]
    results = {"schema_version": SCHEMA_VERSION, "run": run.facts, "records": records} if run.facts else None
    status = {key: run.status[key] for key in KEPT if key in run.status}
    line = {"name": run.name, "status": status, "config": config, "results": results}
    return orjson.dumps({**line, "losses": to_keep(losses_of(run))}) + b"\n"


def _rounded(columns: Mapping[str, Any] | None) -> dict[str, list[Any]] | None:
    return (
        None
        if columns is None
        else {
            name: [float(f"{one:.{DIGITS}g}") if isinstance(one, float) else one for one in column]
            for name, column in columns.items()
        }
    )


def packed(lines: Sequence[bytes]) -> bytes:
    """The bundle of these lines: the same bytes for the same lines."""
    head = orjson.dumps({HEAD: 1, "schema_version": SCHEMA_VERSION, "runs": len(lines)}) + b"\n"
    return gzip.compress(head + b"".join(lines), compresslevel=9, mtime=0)


def unpacked(data: bytes, largest_line: int) -> Iterator[dict[str, Any]]:
    """The runs of a bundle, a line each. Raises ValueError for a damaged or foreign one."""
    read = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            head = _object(file.readline(1000))
            if head.get(HEAD) != 1 or head.get("schema_version") != SCHEMA_VERSION:
                raise ValueError("not a bundle of runs, or one of another version")
            expected = head.get("runs")
            found = 0
            while line := file.readline(largest_line + 1):
                read += len(line)
                if len(line) > largest_line or read > MOST_PACKED * len(data) + 10_000:
                    raise ValueError(f"line {found + 2} is too long")
                if found == MOST_RUNS:
                    raise ValueError(f"more than {MOST_RUNS} runs")
                yield _object(line)
                found += 1
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"damaged ({error})") from error
    if found != expected:
        raise ValueError(f"damaged ({found} of {expected} runs)")


def _object(line: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(line)
    except ValueError as error:
        raise ValueError(f"damaged ({error})") from error
    if not isinstance(data, dict):
        raise ValueError("damaged (not an object)")
    return data
