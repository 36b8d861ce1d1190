"""Evaluation records as a dashboard wants them: curves against window and position, summary, a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

MEASURES = ("nats", "bpb", "ppl")
COLUMNS = ("encoding", "protocol", "window", "multiple", "nats", "bpb", "ppl", "seed")

Record = Mapping[str, Any]


def by_window(records: Iterable[Record]) -> list[dict[str, float]]:
    """One row a window (tokens), shortest first, with the figures of every protocol measured there.

    Measures that share a row can be plotted against one another, so no window is spread over two rows.
    A figure that is missing or not finite (out of memory, perplexity beyond a float) is left out.
    """
    rows: dict[int, dict[str, float]] = {}
    for record in records:
        window = int(record["window"])
        row = rows.setdefault(window, {"eval/window": window})
        for measure in MEASURES:
            value = _finite(record.get(measure))
            if value is not None:
                row[f"eval/{curve_name(record)}/{measure}"] = value
    return [rows[window] for window in sorted(rows) if len(rows[window]) > 1]


def by_position(records: Iterable[Record]) -> list[dict[str, float]]:
    """One row a bin of positions, with the loss (nats) and its rise over that at T of every curve there.

    `eval/position` is the last position of the bin. Of several windows the longest is taken.
    """
    longest: dict[str, Record] = {}
    for record in records:
        if record.get("curve") and record["window"] >= longest.get(curve_name(record), record)["window"]:
            longest[curve_name(record)] = record
    rows: dict[int, dict[str, float]] = {}
    for name, record in longest.items():
        curve = record["curve"]
        for i, position in enumerate(edge - 1 for edge in curve["edges"][1:]):
            row = rows.setdefault(position, {"eval/position": position})
            for measure in ("nats", "rise"):
                value = _finite(curve[measure][i])
                if value is not None:
                    row[f"eval/{name}/{measure}-by-position"] = value
    return [rows[position] for position in sorted(rows) if len(rows[position]) > 1]


def summary(records: Iterable[Record]) -> dict[str, float]:
    """`eval/<protocol>/nats@8x` for every multiple of the training length."""
    figures = {}
    for record in records:
        value, multiple = _finite(record.get("nats")), _finite(record.get("multiple"))
        if value is not None and multiple is not None:
            figures[f"eval/{curve_name(record)}/nats@{multiple:g}x"] = value
    return figures


def table_rows(records: Iterable[Record], config: Mapping[str, Any]) -> list[list[Any]]:
    """The rows of `COLUMNS`; the encoding's name and the seed are taken from the run's `config`."""
    encoding = config.get("encoding")
    name = encoding.get("name") if isinstance(encoding, Mapping) else encoding
    return [
        [
            name,
            curve_name(record),
            int(record["window"]),
            _finite(record.get("multiple")),
            *(_finite(record.get(measure)) for measure in MEASURES),
            config.get("seed"),
        ]
        for record in records
    ]


def curve_name(record: Record) -> str:
    """The protocol, and the test-time extension if there is one: `fixed-target`, `fixed-target+yarn`."""
    extend = record.get("extend")
    name = extend.get("name") if isinstance(extend, Mapping) else extend
    return f"{record['protocol']}+{name}" if name not in (None, "none") else str(record["protocol"])


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
