"""Many runs' results in one small file, without weights: to keep beside a paper, and to compare from.

A bundle is gzipped JSON lines: a head, then for each run its status, settings, results and training losses.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posenc.results.run import Run
from posenc.results.safe_read import parse_object, read_file
from posenc.results.schema import SCHEMA_VERSION

SUFFIX = ".runs.jsonl.gz"
HEAD = "posenc_bundle"
DIGITS = 7  # of the sums by document: a table shows three to five, and the others do not compress
LOSS_DIGITS = 5
MOST_RUNS = 20_000  # a line of three bytes would make a run of a thousand
MOST_PACKED = 50  # times smaller than its content; real ones are 5 to 10 times
MOST_LOSSES = 200  # points of a training curve: a figure is some 400 pixels wide
KEPT = ("status", "reason", "step", "versions", "git_commit", "started", "updated")


def bundled(run: Run) -> bytes:
    """Return a run as a line of a bundle: no host, no process; of its owner's folders only `data.paths`.

    One that diverged before it was measured has no results.
    """
    import orjson

    config = {key: value for key, value in (run.config or {}).items() if key != "runs_dir"}
    records = [{**record, "per_document": _rounded(record["per_document"])} for record in run.records]
    results = {"schema_version": SCHEMA_VERSION, "run": run.facts, "records": records} if run.facts else None
    status = {key: run.status[key] for key in KEPT if key in run.status}
    line = {"name": run.name, "status": status, "config": config, "results": results}
    return orjson.dumps({**line, "losses": loss_columns(losses_of(run))}) + b"\n"


def _rounded(columns: Mapping[str, Any] | None) -> dict[str, list[Any]] | None:
    if columns is None:
        return None
    return {
        name: [float(f"{one:.{DIGITS}g}") if isinstance(one, float) else one for one in column]
        for name, column in columns.items()
    }


def packed(lines: Sequence[bytes]) -> bytes:
    """Return the bundle of these lines: the same bytes for the same lines."""
    head = f'{{"{HEAD}":1,"schema_version":{SCHEMA_VERSION},"runs":{len(lines)}}}\n'.encode()
    return gzip.compress(head + b"".join(lines), compresslevel=9, mtime=0)


def unpacked(data: bytes, largest_line: int) -> Iterator[dict[str, Any]]:
    """Yield the runs of a bundle, a line each. Raises ValueError for a damaged or foreign one."""
    read = found = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            head = parse_object(file.readline(1000), "head")
            if head.get(HEAD) != 1 or head.get("schema_version") != SCHEMA_VERSION:
                raise ValueError("not a bundle of runs, or one of another version")
            while line := file.readline(largest_line + 1):
                read += len(line)
                if len(line) > largest_line or read > MOST_PACKED * len(data) + 10_000:
                    raise ValueError(f"line {found + 2} is too long")
                if found == MOST_RUNS:
                    raise ValueError(f"more than {MOST_RUNS} runs")
                yield parse_object(line, f"line {found + 2}")
                found += 1
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"damaged ({error})") from error
    if found != head.get("runs"):
        raise ValueError(f"damaged ({found} of {head.get('runs')} runs)")


def losses_of(run: Run) -> dict[float, float]:
    """Return a run's logged training losses, nats per token by tokens trained on; empty without any.

    From its metrics.jsonl, or as many as its bundle keeps.
    """
    if run.losses is not None:
        return dict(sorted(run.losses.items()))
    try:
        text = read_file(run.path, "metrics.jsonl") or b""
    except (OSError, ValueError):
        return {}
    found = {}
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            tokens, loss = float(entry["tokens"]), float(entry["loss"])
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
            continue  # a line that a kill cut short
        if 0 <= tokens < 1e15 and abs(loss) < 1e15:
            found[tokens] = loss
    return dict(sorted(found.items()))


def loss_columns(losses: Mapping[float, float]) -> dict[str, list[float]]:
    """Return the losses as columns of a bundle: all, or those nearest to MOST_LOSSES evenly spaced tokens.

    The grid is shared: two seeds of which one missed a log step keep the same other steps, and a mean over
    seeds needs them at the same tokens.
    """
    every = sorted(losses)
    if len(every) > MOST_LOSSES:
        grid = [every[-1] * (k + 1) / MOST_LOSSES for k in range(MOST_LOSSES)]
        every = sorted({_nearest(every, at) for at in grid})
    return {
        "tokens": [int(at) if at.is_integer() else at for at in every],
        "loss": [float(f"{losses[at]:.{LOSS_DIGITS}g}") for at in every],
    }


def kept_losses(columns: object) -> dict[float, float]:
    """Return what `loss_columns` made, read from a stranger's bundle; empty for anything else."""
    if not isinstance(columns, dict):
        return {}
    tokens, losses = columns.get("tokens"), columns.get("loss")
    if not (isinstance(tokens, list) and isinstance(losses, list)) or len(tokens) != len(losses):
        return {}
    if not all(type(one) in (int, float) and abs(one) < 1e15 for one in (*tokens, *losses)):
        return {}
    if len(tokens) > MOST_LOSSES or any(at < 0 for at in tokens):
        return {}
    return {float(at): float(loss) for at, loss in zip(tokens, losses, strict=True)}


def _nearest(every: list[float], at: float) -> float:
    """Return the one of the sorted numbers that is nearest to `at`."""
    i = bisect_left(every, at)
    return min(every[max(i - 1, 0) : i + 1], key=lambda one: abs(one - at))
