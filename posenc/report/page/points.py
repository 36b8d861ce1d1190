"""What the charts show: a point for each cell of a comparison, with the words that hovering shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from posenc.core.errors import visible
from posenc.report.words import length, spread_is_of
from posenc.results.cells import Cell
from posenc.results.comparison import Column, Comparison
from posenc.results.schema import METRICS, printed, printed_change

DIGITS = 6  # significant ones of a coordinate

Point = dict[str, Any]  # r row, x multiple of T, y loss, a-b its band, d change, e-f its band, t words


def points_of(comparison: Comparison, rows: Sequence[int]) -> list[Point]:
    """Every cell that has a number; `rows` are the numbers of the comparison's rows in the page."""
    metric, of = comparison.header["metric"], spread_is_of(comparison)
    found = []
    for number, row in zip(rows, comparison.rows, strict=True):
        for column, cell in zip(comparison.columns, row.cells, strict=True):
            if cell.mean is None or not math.isfinite(cell.mean):
                continue
            point: Point = {"r": number, "x": short(column.multiple), "y": short(cell.mean)}
            point |= _band(cell.mean, cell.spread, None, "ab")
            if cell.change is not None and math.isfinite(cell.change):
                point["d"] = short(cell.change)
                point |= _band(cell.change, cell.change_spread, cell.change_ci95, "ef")
            point["t"] = _words(column, cell, comparison, metric, of)
            found.append(point)
    return found


def short(value: float) -> float:
    """A coordinate with as many digits as a picture can show."""
    return float(f"{value:.{DIGITS}g}")


def _band(value: float, spread: float | None, interval: Sequence[float] | None, names: str) -> Point:
    """The standard deviation over seeds on both sides; for one seed the interval over documents."""
    if spread is not None and math.isfinite(spread):
        interval = (value - spread, value + spread)
    return {} if interval is None else {name: short(end) for name, end in zip(names, interval, strict=True)}


def _words(column: Column, cell: Cell, comparison: Comparison, metric: str, of: str | None) -> list[str]:
    assert cell.mean is not None
    tokens = "" if cell.window is None else f" = {cell.window} tokens"
    if any(row.curve for row in comparison.rows):
        tokens = "" if cell.window is None else f", position {cell.window}"
    seeds = f"{cell.seeds} seed{'s' if cell.seeds > 1 else ''}"
    spread = "" if cell.spread is None else f" ± {printed(cell.spread, metric)}"
    name = "perplexity" if metric == "ppl" else "loss"
    words = [length(round(column.multiple, 3)) + tokens]
    words.append(f"{name} {printed(cell.mean, metric)}{spread} ({seeds})")
    if cell.change is not None and column.multiple != 1:
        spread = "" if cell.change_spread is None else f" ± {printed(cell.change_spread, metric)}"
        words.append(f"change {printed_change(cell.change, metric)}{spread}{_ends(cell.change_ci95, metric)}")
    if cell.verdict is not None and cell.verdict_change is not None:
        value = printed_change(cell.verdict_change, "bpb")
        words.append(f"{value}{_ends(cell.verdict_ci95, 'bpb')} {METRICS['bpb']}: {cell.verdict}")
    if cell.against is not None:
        value = printed_change(cell.against.difference, metric) + _ends(cell.against.ci95, metric)
        words.append(f"against {comparison.header['baseline']} {value}: {cell.against.word}")
    if column.targets is not None and column.documents is not None:
        words.append(f"{column.targets} targets, {column.documents} documents")
    return [visible(word) for word in (*words, *([cell.note] if cell.note else []))]


def _ends(interval: Sequence[float] | None, metric: str) -> str:
    if interval is None:
        return ""
    low, high = (printed_change(end, metric) for end in interval)
    return f" (95% interval {low} to {high})"
