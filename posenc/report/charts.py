"""Turn comparisons into Vega-Lite charts: lines with bands over seeds, a legend and a nearest point.

Row names are data of a chart and never part of an expression. Colours are those of the page's style sheet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from posenc.report.captions import length, millions, unit_of
from posenc.report.colors import Style
from posenc.report.plots.series import MOST_BANDS, Names, Series, series_of, training_series
from posenc.report.table import cell_lines
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison
from posenc.results.load import Run

TICKS = [sign * tick for tick in (0.02, 0.1, 0.5, 1, 2, 5) for sign in (-1, 1)] + [0]
FINE = 0.02  # a change of this size: the axis is logarithmic beyond
DIGITS = 6  # significant ones of a coordinate
DENSE = 16  # points of a line; of more none is marked
MOST_TICKS = 8
MOST_LOGGED = 120  # points of a training curve
SHAPES = {  # by matplotlib's letters, as paths in a square from -1 to 1
    "o": "M1,0A1,1,0,1,1,-1,0A1,1,0,1,1,1,0Z",
    "s": "M-.85,-.85H.85V.85H-.85Z",
    "^": "M0,-1L1,.8H-1Z",
    "v": "M0,1L1,-.8H-1Z",
    "<": "M-1,0L.8,-1V1Z",
    ">": "M1,0L-.8,-1V1Z",
    "D": "M0,-1.1L1.1,0L0,1.1L-1.1,0Z",
    "P": "M-.35,-1H.35V-.35H1V.35H.35V1H-.35V.35H-1V-.35H-.35Z",
    "X": "M-1,-.5L-.5,-1L0,-.5L.5,-1L1,-.5L.5,0L1,.5L.5,1L0,.5L-.5,1L-1,.5L-.5,0Z",
    "*": "M0,-1.2L.3,-.4L1.15,-.37L.48,.15L.71,.97L0,.5L-.71,.97L-.48,.15L-1.15,-.37L-.3,-.4Z",
}
Point = dict[str, Any]  # row, x, y, low and high: the ends of its band, text
Looks = Mapping[str, tuple[int, Style]]  # by the row's name in the page: its number there, its style


def context_charts(comparison: Comparison, names: Names, looks: Looks) -> list[dict[str, Any]]:
    """Return the charts of the loss and of its change against context or position; none without a number."""
    losses = _context_points(comparison, names, change=False)
    if not losses:
        return []
    curves, unit = any(row.curve for row in comparison.rows), unit_of(comparison.header)
    axis = _context_axis(comparison, "position" if curves else "context")
    charts = [_chart("Loss by position" if curves else "Loss against context", unit, losses, axis, looks)]
    changes = _context_points(comparison, names, change=True)
    if any(point["x"] != 1 for point in changes):
        title = "Rise over the mean from T/2 to T" if curves else "Change against T"
        charts.append(_chart(title, unit, changes, axis, looks, FINE))
    return charts


def training_chart(
    comparison: Comparison, runs: Sequence[Run], names: Names, looks: Looks
) -> list[dict[str, Any]]:
    """Return the chart of the training losses, thinned; none without any."""
    points: list[Point] = []
    for one in training_series(comparison, runs, names):
        step = max(1, math.ceil(len(one.x) / MOST_LOGGED))
        texts = [[f"{millions(round(x))} tokens", f"{y:.3f}"] for x, y in zip(one.x, one.y, strict=True)]
        points += _points(one, texts, {*range(0, len(one.x), step), len(one.x) - 1} if one.x else ())
    axis = {"title": "tokens trained on", "format": "~s", "tickCount": 5}
    return [_chart("Training loss", "nats per token", points, axis, looks)] if points else []


# --- points


def _context_points(comparison: Comparison, names: Names, change: bool) -> list[Point]:
    """Return a point for each cell with a number."""
    points: list[Point] = []
    for one, row in zip(series_of(comparison, names, change), comparison.rows, strict=True):
        texts = [_text(cell, comparison) for cell in row.cells]
        points += _points(one, texts, range(len(texts)))
    return points


def _points(one: Series, texts: Sequence[Sequence[str]], places: Iterable[int]) -> Iterator[Point]:
    """Yield the points of a line at these places, with its band where there is one."""
    for i in sorted(places):
        if math.isfinite(one.y[i]):
            known = math.isfinite(one.low[i])
            band = {"low": _short(one.low[i]), "high": _short(one.high[i])} if known else {}
            text = "\n".join([one.name, *texts[i]])
            yield {"row": one.name, "x": _short(one.x[i]), "y": _short(one.y[i]), **band, "text": text}


def _text(cell: Cell, comparison: Comparison) -> list[str]:
    """Return what pointing at a cell shows, in lines: window, the cell of the table, what it is of."""
    place = length(round(cell.multiple, 3)) + ("" if cell.window is None else f" = {cell.window} tokens")
    counts = f"{cell.seeds} seed{'s' if cell.seeds > 1 else ''}"
    if cell.targets is not None:
        counts += f", {cell.targets} targets, {cell.documents} documents"
    return [place, *cell_lines(cell, comparison.header["metric"]), counts]


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


# --- Vega-Lite


def _chart(
    title: str, unit: str, points: Sequence[Point], axis: dict[str, Any], looks: Looks, fine: float = 0.0
) -> dict[str, Any]:
    """Return title, unit and specification: chart.json with these points.

    y is linear, or up to `fine` and logarithmic beyond it.
    """
    spec = json.loads(files("posenc.report").joinpath("chart.json").read_text(encoding="utf-8"))
    at_t, name_of_t, band, line, dots = spec["layer"]
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    context, xs = "values" in axis, [point["x"] for point in points]  # multiples of T, else tokens trained on
    low, high = _padded([point[key] for point in points for key in ("y", "low", "high") if key in point])
    x["axis"] |= axis
    x["scale"]["domain"] = [min(xs) if context else 0, max(xs)]
    x["scale"] |= {"type": "log", "base": 2, "padding": 14} if context else {}
    y["scale"]["domain"] = [low, high]
    if fine:
        y["scale"] |= {"type": "symlog", "constant": fine}
        y["axis"]["values"] = [tick for tick in TICKS if low <= tick <= high]

    names = list(dict.fromkeys(point["row"] for point in points))
    styles = [looks[name][1] for name in names]
    by_row = {
        "color": [f"var(--s{looks[name][0]})" for name in names],
        "strokeDash": [[round(2 * part, 1) for part in style.dash] or [1, 0] for style in styles],
        "shape": [SHAPES[style.marker] for style in styles],
    }
    for layer in (band, line, dots):
        for channel in by_row.keys() & layer["encoding"].keys():
            scale = {"domain": names, "range": by_row[channel]}
            layer["encoding"][channel] = {"field": "row", "type": "nominal", "scale": scale}
    if len(points) > DENSE * len(names):
        dots["encoding"]["size"]["value"] = 0
    bands = [band] if len(names) <= MOST_BANDS else []
    spec["layer"] = [*([at_t, name_of_t] if context and min(xs) < 1 < max(xs) else []), *bands, line, dots]
    return {"title": title, "unit": unit, "spec": spec | {"data": {"values": list(points)}}}


def _context_axis(comparison: Comparison, name: str) -> dict[str, Any]:
    """A tick for each window length, with its tokens; of many, those at powers of two."""
    ticks = [(column.multiple, column.window) for column in comparison.columns]
    if len(ticks) > MOST_TICKS:
        octaves = [math.log2(multiple) for multiple, _ in ticks]
        ticks = [tick for tick, at in zip(ticks, octaves, strict=True) if abs(at - round(at)) < 0.02]
        ticks = ticks[-MOST_TICKS:]
    labels = {
        f"{_short(multiple):g}": [length(round(multiple, 2)), *([] if window is None else [str(window)])]
        for multiple, window in ticks
    }
    return {
        "title": f"{name}: multiples of T, tokens",
        "values": [_short(multiple) for multiple, _ in ticks],
        "labelExpr": f"{labels}[toString(datum.value)]",
        "labelFlush": False,
        "labelOverlap": False,
    }


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    return _short(low - room), _short(high + room)
