"""Bundles: many runs without their weights in one file, such as the runs of a paper.

A bundle is gzipped JSON lines: a head, then for each run its name, status, settings and results.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from posenc.core.errors import safe_name
from posenc.core.paths import LONGEST_PART
from posenc.core.run_states import DIVERGED
from posenc.results.files import parse_object, read_file
from posenc.results.records import PerDocument
from posenc.results.runs import Run, RunStatus, with_results
from posenc.settings.stored import checked_settings, other_schema
from posenc.settings.tree import SCHEMA_VERSION

SUFFIX = ".runs.jsonl.gz"
HEAD = "posenc_bundle"
# Significant digits of the loss of each document. A table shows three to five, and gzip cannot shrink more.
DIGITS = 7
# A file that unpacks to more than this many times its size is refused. Real bundles grow 5 to 10 times.
MOST_EXPANSION = 50
LEAST_ROOM = 10_000  # bytes that every bundle may unpack to, however small it is
# No host, process, overrides or folder: a bundle is published, and those name its owner's machine.
STATUS_FIELDS = ("status", "reason", "step", "versions", "git_commit", "started", "updated")


def load_bundle(path: Path) -> Iterator[Run]:
    """Yield the runs of a bundle, each with the path BUNDLE/NAME. Never raises."""
    try:
        content = read_file(path.parent, path.name)  # None if the file is gone
        for line in unpack_bundle(content or b""):  # an empty bundle raises ValueError
            yield _run(path, line)
    except (OSError, ValueError) as error:
        yield Run(path, problem=str(error) or type(error).__name__)


def _run(bundle: Path, line: Mapping[str, Any]) -> Run:
    """Return the run of a line; it has a `problem` if the line cannot be used."""
    status = line.get("status")
    # whole, since seeds of a run may differ only at the end of a long name
    name = safe_name(str(line.get("name")), LONGEST_PART)
    run = Run(bundle / name)
    if isinstance(status, dict):
        run = replace(run, status=cast(RunStatus, status))
    results = line.get("results")
    try:
        # Settings come before results, as in `load_run`: by them a run with damaged results still finds its
        # row.
        if line.get("config") is not None:
            run = replace(run, settings=checked_settings(line["config"]))
        # A bundle holds its diverged runs as well. Without them it crowned the survivors (docs/log.md,
        # 2026-11-22).
        has_diverged = run.status.get("status") == DIVERGED
        if results is None and has_diverged:
            return run  # a diverged run has no results
        return with_results(run, results or {})  # an empty object raises ValueError
    except ValueError as error:
        return replace(run, problem=str(error))


def bundle_line(run: Run) -> bytes:
    """Return a run as a line of a bundle.

    It names no host, process or folder of its owner, except in paths among the settings such as `data.paths`.
    """
    import orjson

    config = None
    if run.settings is not None:
        config = run.settings.with_changes(runs_dir="runs").plain()  # not the owner's folder
    results = None
    if run.facts is not None:
        records = [{**record, "per_document": _rounded(record["per_document"])} for record in run.records]
        results = {"schema_version": SCHEMA_VERSION, "run": run.facts, "records": records}
    all_status: dict[str, object] = dict(run.status)
    status = {key: all_status[key] for key in STATUS_FIELDS if key in all_status}
    line = {"name": run.name, "status": status, "config": config, "results": results}
    return orjson.dumps(line) + b"\n"


def _rounded(sums: PerDocument | None) -> Mapping[str, Any] | None:
    """Return the sums with losses of DIGITS significant digits."""
    if sums is None:
        return None
    return {**sums, "nats": [float(f"{value:.{DIGITS}g}") for value in sums["nats"]]}


def pack_bundle(lines: Sequence[bytes]) -> bytes:
    """Return the bundle of these lines. The same lines always give the same bytes."""
    import orjson

    # The number of runs is in the head, since JSON lines that were cut between two lines would look complete.
    head = orjson.dumps({HEAD: 1, "schema_version": SCHEMA_VERSION, "runs": len(lines)}) + b"\n"
    # Without `mtime=0` gzip stores the time, and the same lines would give another file.
    return gzip.compress(head + b"".join(lines), compresslevel=9, mtime=0)


def unpack_bundle(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the lines of a bundle, one for each run. Raises ValueError for a damaged or foreign bundle.

    A truncated bundle yields its complete lines, then raises.
    """
    unzip = zlib.decompressobj(wbits=31)  # 31 means gzip
    most_bytes = MOST_EXPANSION * len(data) + LEAST_ROOM
    try:
        # In one call with a limit: a small file that unpacks to gigabytes must not fill the memory of its
        # reader.
        content = unzip.decompress(data, most_bytes)
    except zlib.error as error:
        raise ValueError(f"damaged ({error})") from error
    all_lines = content.splitlines()
    head = parse_object(all_lines[0] if all_lines else b"", "head")
    if head.get(HEAD) != 1:
        raise ValueError("not a bundle of runs")
    version = head.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(other_schema(version))
    lines = all_lines[1:]
    for number, line in enumerate(lines, start=2):  # the head is line 1
        yield parse_object(line, f"line {number}")
    # The stream did not end: the file was cut, or it unpacks to more than `most_bytes`.
    if not unzip.eof or len(lines) != head.get("runs"):
        counts = f"{len(lines)} of {head.get('runs')} runs"
        raise ValueError(f"damaged, or longer than {most_bytes} bytes ({counts})")
