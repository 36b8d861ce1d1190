"""Turn comparisons into Vega-Lite charts: lines with bands over seeds, a legend and a nearest point.

Row names are data of a chart and never part of an expression. Colours are those of the page's style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from posenc.report.captions import length, millions
from posenc.report.colors import Style
from posenc.report.plots.series import Names, Series, series_of, training_series
from posenc.report.table import cell_lines
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison
from posenc.results.load import Run

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # a name; nothing is fetched
HEIGHT = 280  # pixels
FINE = 0.02  # a change of this size: the axis is logarithmic beyond
DIGITS = 6  # significant ones of a coordinate
DENSE = 16  # points of a line; of more none is marked
MOST_BANDS = 12  # lines; the bands of more would hide each other
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
INK, FAINT, PALE = "var(--ink)", "var(--faint)", "var(--line)"
TEXT = {"labelColor": FAINT, "titleColor": FAINT, "labelFontSize": 12, "titleFontSize": 12}
CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        **TEXT,
        "gridColor": PALE,
        "domainColor": FAINT,
        "tickColor": FAINT,
        "titleFontWeight": "normal",
    },
    "legend": {**TEXT, "labelColor": INK, "symbolSize": 90, "symbolStrokeWidth": 2},
}

_AT_T = {"values": [{"x": 1.0}]}
MARKED_T: list[dict[str, Any]] = [
    {
        "data": _AT_T,
        "mark": {"type": "rule", "color": FAINT, "strokeDash": [2, 3]},
        "encoding": {"y": None},
    },
    {
        "data": _AT_T,
        "mark": {"type": "text", "text": "T", "color": INK, "align": "left", "baseline": "top", "dx": 4},
        "encoding": {"y": {"value": 2}, "x": {"field": "x", "type": "quantitative"}},
    },
]

Point = dict[str, Any]  # row, x, y, low and high: the ends of its band, text
Looks = Mapping[str, tuple[int, Style]]  # by the row's name in the page: its number there, its style


def context_charts(comparison: Comparison, names: Names, looks: Looks) -> list[dict[str, Any]]:
    """Return the charts of the loss and of its change against context or position; none without a number."""
    losses = _context_points(comparison, names, change=False)
    if not losses:
        return []
    curves, unit = any(row.curve for row in comparison.rows), comparison.header["unit"]
    axis = _context_axis(comparison, "position" if curves else "context")
    charts = [_chart("Loss by position" if curves else "Loss against context", unit, losses, axis, looks)]
    changes = _context_points(comparison, names, change=True)
    if any(point["x"] != 1 for point in changes):
        title = "Rise over the mean from T/2 to T" if curves else "Change against T"
        charts.append(_chart(title, unit, changes, axis, looks, FINE))
    return charts


def training_chart(
    comparison: Comparison, runs: Sequence[Run], names: Names, looks: Looks
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the chart of the training losses, thinned, and which runs have no whole curve."""
    series, notes = training_series(comparison, runs, names)
    points: list[Point] = []
    for one in series:
        step = max(1, math.ceil(len(one.x) / MOST_LOGGED))
        texts = [[f"{millions(round(x))} tokens", f"{y:.3f}"] for x, y in zip(one.x, one.y, strict=True)]
        points += _points(one, texts, {*range(0, len(one.x), step), len(one.x) - 1} if one.x else ())
    axis = {"title": "tokens trained on", "format": "~s", "tickCount": 5}
    return [_chart("Training loss", "nats per token", points, axis, looks)] if points else [], notes


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
    """Return title, unit and specification; y is linear up to `fine` and logarithmic beyond, or linear."""
    context, xs = "values" in axis, [point["x"] for point in points]  # multiples of T, else tokens trained on
    low, high = _padded([point[key] for point in points for key in ("y", "low", "high") if key in point])
    x_scale: dict[str, Any] = {"domain": [min(xs) if context else 0, max(xs)], "nice": False}
    x_scale |= {"type": "log", "base": 2, "padding": 14} if context else {}
    y_scale: dict[str, Any] = {"domain": [low, high], "zero": False, "nice": False}
    y_scale |= {"type": "symlog", "constant": fine} if fine else {}
    spec = {
        "$schema": SCHEMA,
        "width": "container",
        "height": HEIGHT,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": CONFIG,
        "data": {"values": list(points)},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "scale": x_scale, "axis": {**axis, "grid": False}},
            "y": {
                "field": "y",
                "type": "quantitative",
                "scale": y_scale,
                "axis": {"title": None, "tickCount": 6, "minExtent": 36},
            },
        },
        "layer": [*(MARKED_T if context and min(xs) < 1 < max(xs) else []), *_lines(points, looks)],
    }
    return {"title": title, "unit": unit, "spec": spec}


def _lines(points: Sequence[Point], looks: Looks) -> list[dict[str, Any]]:
    """Return bands, lines, and points; rows that the legend has not chosen are dimmed."""
    names = list(dict.fromkeys(point["row"] for point in points))
    styles = [looks[name][1] for name in names]

    def by_row(values: Sequence[Any]) -> dict[str, Any]:
        # with the opacity of a band as its own the legend would not be bound
        legend = {"title": None, "orient": "bottom", "columns": 2, "labelLimit": 150, "symbolOpacity": 1}
        scale = {"domain": names, "range": list(values)}
        return {"field": "row", "type": "nominal", "scale": scale, "legend": legend}

    colors = [f"var(--s{looks[name][0]})" for name in names]
    dashes = [[round(2 * part, 1) for part in style.dash] or [1, 0] for style in styles]
    shapes = [SHAPES[style.marker] for style in styles]
    dimmed = {"condition": {"param": "chosen", "value": 1}, "value": 0.12}
    band = {
        "mark": {"type": "area", "clip": True},
        "transform": [{"filter": "isValid(datum.low)"}],
        "encoding": {
            "y": {"field": "low", "type": "quantitative"},
            "y2": {"field": "high"},
            "color": by_row(colors),
            "opacity": {"condition": {"param": "chosen", "value": 0.16}, "value": 0},
        },
    }
    line = {
        "mark": {"type": "line", "clip": True, "strokeWidth": 2},
        "encoding": {"color": by_row(colors), "strokeDash": by_row(dashes), "opacity": dimmed},
    }
    nearest = {"type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout"}
    dots = {
        "params": [
            {"name": "chosen", "select": {"type": "point", "fields": ["row"]}, "bind": "legend"},
            {"name": "pointed", "select": nearest},
        ],
        "mark": {"type": "point", "clip": True, "filled": True},
        "encoding": {
            "color": by_row(colors),
            "shape": by_row(shapes),
            "opacity": dimmed,
            "size": {
                "condition": {"param": "pointed", "empty": False, "value": 170},
                "value": 0 if len(points) > DENSE * len(names) else 55,
            },
            "tooltip": {"field": "text", "type": "nominal"},
        },
    }
    return [*([band] if len(names) <= MOST_BANDS else []), line, dots]


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
