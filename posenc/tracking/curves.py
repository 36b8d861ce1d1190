"""Turn records of an evaluation into curves: their names, and rows of figures by window or by position."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.core.quantities import length_text
from posenc.results.identity import knob_words
from posenc.results.records import Record

# axes
STEP = "step"  # training steps
WINDOW = "eval/window"  # tokens
POSITION = "eval/position"  # tokens before a position

Row = dict[str, float]  # figures by name


@dataclass(frozen=True)
class CurvePoint:
    """Hold a record, and the name of the curve that it is a point of."""

    curve: str
    record: Record


def measurement_key(record: Record) -> str:
    """Return a text that identifies a measurement.

    The loss is a part of it, so that a cell that was measured again is sent again.
    """
    values = [
        record["protocol"],
        record["window"],
        record["stride"],
        record["targets_hash"],
        record["checkpoint_step"],
        record["nats"],
    ]
    if "precision" in record:
        values.append(record["precision"])
    extension = json.dumps(record["extend"], sort_keys=True, default=str)
    return "|".join([*map(str, values), extension])


def curve_points(records: Iterable[Record], config: Mapping[str, Any]) -> list[CurvePoint]:
    """Return the records as points of curves, curve by curve. `config` holds the settings of their run.

    Points of a later evaluation with another stride or on other targets are left out.
    """
    curves: dict[str, list[Record]] = {}
    for record in records:
        curves.setdefault(curve_name(record, config), []).append(record)
    points = []
    for name, curve in curves.items():
        same_stride = _with_most_frequent(curve, lambda record: record["stride"])
        comparable = _with_most_frequent(same_stride, lambda record: record["targets_hash"])
        points += [CurvePoint(name, record) for record in comparable]
    return points


def _with_most_frequent(records: list[Record], value_of: Callable[[Record], object]) -> list[Record]:
    """Return the records that share the most frequent value, or all if no value comes twice."""
    # `sliding` scores other targets at each window, which is no reason to leave windows out
    value, count = Counter(map(value_of, records)).most_common(1)[0]
    if count == 1:
        return records
    return [record for record in records if value_of(record) == value]


def curve_name(record: Record, config: Mapping[str, Any]) -> str:
    """Return `fixed-target+yarn beta_fast=4 on stdlib`: text and precision are named if not the run's."""
    name = record["protocol"]
    details = []
    extension = record["extend"]
    if extension is not None:
        name += f"+{extension['name']}"
        details += knob_words(extension)
    # Only what differs from the run's own settings, so that the curves of the usual evaluation have the same
    # names in every run, and a dashboard can lay them over each other.
    if record["corpus"] != config["data"]["name"]:
        details.append(f"on {record['corpus']}")
    if record["split"] != config["eval"]["split"]:
        details.append(record["split"])
    if "precision" in record:
        details.append(f"in {record['precision']}")
    return " ".join([name, *details])


def rows_by_axis(points: Iterable[CurvePoint]) -> dict[str, dict[int, Row]]:
    """Return rows of figures by window, in tokens, and rows by the last position of each bin of positions.

    Rows hold only finite figures.
    """
    rows_by_window: dict[int, Row] = defaultdict(dict)
    rows_by_position: dict[int, Row] = defaultdict(dict)
    # in order of the windows, so that at each position the figures of the longest window stay
    for point in sorted(points, key=lambda point: point.record["window"]):
        record = point.record
        losses = {
            f"eval/{point.curve}/nats": record["nats"],
            f"eval/{point.curve}/bpb": record["bpb"],
            f"eval/{point.curve}/ppl": record["ppl"],
        }
        rows_by_window[record["window"]].update(finite(losses))
        for position, figures in _figures_by_position(point).items():
            rows_by_position[position].update(finite(figures))
    return {WINDOW: _ascending(rows_by_window), POSITION: _ascending(rows_by_position)}


def _figures_by_position(point: CurvePoint) -> dict[int, Row]:
    """Return the figures of each bin of positions, by its last position."""
    curve = point.record.get("curve")
    if curve is None:
        return {}
    figures = {}
    # bin i ends before edges[i + 1]
    for end, nats, rise in zip(curve["edges"][1:], curve["nats"], curve["rise"], strict=True):
        last_position = end - 1
        figures[last_position] = {
            f"eval/{point.curve}/nats-by-position": nats,
            f"eval/{point.curve}/rise-by-position": rise,
        }
    return figures


def _ascending(rows: Mapping[int, Row]) -> dict[int, Row]:
    """Return the rows that hold figures, in order."""
    return {key: rows[key] for key in sorted(rows) if rows[key]}


def summary_of(points: Sequence[CurvePoint]) -> Row:
    """Return `eval/<curve>/nats@8x` for every multiple of the training length."""
    figures = {}
    for point in points:
        figures[f"eval/{point.curve}/nats@{length_text(point.record['multiple'])}"] = point.record["nats"]
    return finite(figures)


def finite(figures: Mapping[str, float | None]) -> Row:
    """Return the figures that are finite numbers."""
    row = {}
    for name, value in figures.items():
        # Trackers treat nan each in its own way, and a point that is missing is read the same way everywhere.
        if value is not None and math.isfinite(value):
            row[name] = float(value)
    return row
