"""From records of an evaluation to curves: their names, and rows of figures by window or position."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.results.identity import knob_words

# axes: training steps; tokens of a window; tokens before a position
STEP = "step"
WINDOW = "eval/window"
POSITION = "eval/position"

Record = Mapping[str, Any]  # of results.json
Row = dict[str, float]  # figures by name


@dataclass(frozen=True)
class CurvePoint:
    """A record, and the name of the curve that it is a point of."""

    curve: str
    record: Record


def measurement_key(record: Record) -> str:
    """Return the identity of a measurement with its value: what is measured again is sent again."""
    names = ("protocol", "window", "stride", "targets_hash", "checkpoint_step", "nats")
    extension = json.dumps(record.get("extend"), sort_keys=True, default=str)
    return "|".join([*(str(record.get(name)) for name in names), extension])


def curve_points(records: Iterable[Record], config: Mapping[str, Any]) -> list[CurvePoint]:
    """Return the records as points of curves, curve by curve.

    Points of a later evaluation with another stride or on other targets are left out.
    """
    curves: dict[str, list[Record]] = {}
    for record in records:
        curves.setdefault(curve_name(record, config), []).append(record)
    points = []
    for name, curve in curves.items():
        for key in ("stride", "targets_hash"):
            curve = _with_most_frequent(curve, key)
        points += [CurvePoint(name, record) for record in curve]
    return points


def _with_most_frequent(curve: list[Record], key: str) -> list[Record]:
    """Return the records that share the most frequent value of a key; all if each has its own."""
    counts = Counter(str(record.get(key)) for record in curve)
    ((value, count),) = counts.most_common(1)
    if count == 1:
        return curve
    return [record for record in curve if str(record.get(key)) == value]


def curve_name(record: Record, config: Mapping[str, Any]) -> str:
    """Return `fixed-target+yarn beta_fast=4 on stdlib`: the text is named where it is not the run's."""
    name = str(record["protocol"])
    details = []
    extension = record.get("extend")
    if extension is not None:
        name += f"+{extension['name']}"
        details += knob_words(extension)
    corpus = (config.get("data") or {}).get("name")
    if corpus and record.get("corpus", corpus) != corpus:
        details.append(f"on {record['corpus']}")
    split = (config.get("eval") or {}).get("split")
    if split and record.get("split", split) != split:
        details.append(str(record["split"]))
    return " ".join([name, *details])


def rows_by_axis(points: Iterable[CurvePoint]) -> dict[str, dict[int, Row]]:
    """Return a row for each window (tokens), and for each bin of positions, named by its last one.

    Only finite figures are in them. Positions are those of each curve's longest window.
    """
    windows: dict[int, Row] = defaultdict(dict)
    positions: dict[int, Row] = defaultdict(dict)
    for point in sorted(points, key=lambda point: int(point.record["window"])):
        name, record = point.curve, point.record
        figures = {f"eval/{name}/{metric}": record.get(metric) for metric in ("nats", "bpb", "ppl")}
        windows[int(record["window"])] |= finite(figures)
        for position, figures in _figures_by_position(name, record).items():
            positions[position] |= finite(figures)
    return {WINDOW: _ascending(windows), POSITION: _ascending(positions)}


def _figures_by_position(name: str, record: Record) -> dict[int, dict[str, Any]]:
    curve = record.get("curve")
    if not curve:
        return {}
    figures = {}
    for i, edge in enumerate(curve["edges"][1:]):
        figures[edge - 1] = {f"eval/{name}/{key}-by-position": curve[key][i] for key in ("nats", "rise")}
    return figures


def _ascending(rows: Mapping[int, Row]) -> dict[int, Row]:
    """Return the rows that hold figures, in order."""
    return {at: rows[at] for at in sorted(rows) if rows[at]}


def summary_of(points: Sequence[CurvePoint]) -> Row:
    """Return `eval/<curve>/nats@8x` for every multiple of the training length."""
    figures = {}
    for point in points:
        figures[f"eval/{point.curve}/nats@{point.record['multiple']:g}x"] = point.record.get("nats")
    return finite(figures)


def finite(figures: Mapping[str, Any]) -> Row:
    """Return the figures that are finite numbers."""
    numbers = {name: value for name, value in figures.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
