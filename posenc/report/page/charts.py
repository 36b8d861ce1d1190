"""Charts as Vega-Lite: lines with bands over seeds. No text of other people is in them: rows are numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from posenc.report.colors import Style
from posenc.report.page.points import Point, short
from posenc.report.plots.series import MOST_BANDS

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # a name; nothing is fetched
HEIGHT = 300  # pixels
DENSE = 16  # points of a line; of more none is marked
MOST_TICKS = 8
NEAR_PAYS = 2.5  # times that the whole range is wider than the near one before there is a choice
# by matplotlib's letters, as paths in a square from -1 to 1
SHAPES = {
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
ZERO = {"gridColor": {"condition": {"test": "datum.value === 0", "value": FAINT}, "value": PALE}}
CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": FAINT,
        "titleColor": FAINT,
        "gridColor": PALE,
        "domainColor": FAINT,
        "tickColor": FAINT,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
}


@dataclass
class Axis:
    """The horizontal axis."""

    title: str
    ticks: list[tuple[float, list[str]]] = field(default_factory=list)  # with labels, a line each; or none
    log: bool = False
    mark: float | None = None  # a dashed line, named T


@dataclass
class Chart:
    """A chart of the page: `data` names its points, `y`, `low`, `high` their keys."""

    title: str
    unit: str
    data: str
    axis: Axis
    y: str = "y"
    low: str = "a"
    high: str = "b"
    zero: bool = False  # the line at zero is darker
    near: tuple[float, float] | None = None  # the range that a second view shows
    start_near: bool = False


def look(styles: Sequence[Style]) -> dict[str, Any]:
    """The scales that draw row i in style i; colours are the style sheet's."""
    rows = list(range(len(styles)))
    dashes = [[round(2 * part, 1) for part in style.dash] or [1, 0] for style in styles]
    return {
        "color": _scale("nominal", rows, [f"var(--s{i})" for i in rows]),
        "strokeDash": _scale("nominal", rows, dashes),
        "shape": _scale("nominal", rows, [SHAPES.get(style.marker, SHAPES["o"]) for style in styles]),
    }


def spec_of(chart: Chart, points: Sequence[Point], looks: dict[str, Any]) -> dict[str, Any]:
    """The specification; `usermeta` has the ranges of its views."""
    shown = [point for point in points if chart.y in point]
    ends = (chart.y, chart.low, chart.high)
    whole = _padded([point[key] for point in shown for key in ends if key in point])
    near = _near(chart.near, whole)
    start = near if near is not None and chart.start_near else whole
    params = {"hidden": [], "focus": -1, "picked": -1, "low": start[0], "high": start[1]}
    y_scale = {"domain": [{"expr": "low"}, {"expr": "high"}], "zero": False, "nice": False}
    y_axis = {"title": None, "tickCount": 6, "minExtent": 36, **(ZERO if chart.zero else {})}
    return {
        "$schema": SCHEMA,
        "width": "container",
        "height": HEIGHT,
        "autosize": {"type": "fit", "contains": "padding", "resize": True},
        "config": CONFIG,
        "params": [{"name": name, "value": value} for name, value in params.items()],
        "data": {"name": "points"},
        "transform": [{"filter": f"isValid(datum.{chart.y}) && indexof(hidden, datum.r) < 0"}],
        "encoding": {
            "x": _x(chart.axis, [point["x"] for point in shown]),
            "y": {"scale": y_scale, "axis": y_axis},
            "detail": {"field": "r"},
        },
        "layer": [*_rules(chart), *_lines(chart, shown, looks)],
        "usermeta": {"whole": whole, "near": near, "y": chart.y},
    }


def _lines(chart: Chart, shown: Sequence[Point], looks: dict[str, Any]) -> list[dict[str, Any]]:
    """Bands, lines, and the points on them; all but the row in focus are dimmed."""
    rows = len({point["r"] for point in shown})
    one_row = "focus < 0 || focus === datum.r"
    opacity = {"condition": {"test": one_row, "value": 1}, "value": 0.15}
    size: dict[str, Any] = {"condition": {"test": "datum.i === picked", "value": 170}}
    size["value"] = 0 if len(shown) > DENSE * rows else 55
    y = {"field": chart.y, "type": "quantitative"}
    band = {
        "mark": {"type": "area", "clip": True, "opacity": 0.16},
        "transform": [{"filter": f"isValid(datum.{chart.low}) && ({one_row})"}],
        "encoding": {"y": {**y, "field": chart.low}, "y2": {"field": chart.high}, "color": looks["color"]},
    }
    both = {"y": y, "color": looks["color"], "opacity": opacity}
    line = {
        "mark": {"type": "line", "clip": True, "strokeWidth": 2},
        "encoding": {**both, "strokeDash": looks["strokeDash"]},
    }
    dots = {
        "mark": {"type": "point", "clip": True, "filled": True},
        "encoding": {**both, "shape": looks["shape"], "size": size},
    }
    return [*([band] if rows <= MOST_BANDS else []), line, dots]


def context_ticks(multiples: Sequence[float], windows: Sequence[int | None]) -> list[tuple[float, list[str]]]:
    """A tick for each window length, with its tokens; of many, those at powers of two."""
    pairs = list(zip(multiples, windows, strict=True))
    if len(pairs) > MOST_TICKS:
        pairs = [(m, w) for m, w in pairs if abs(math.log2(m) - round(math.log2(m))) < 0.02][-MOST_TICKS:]
    return [(m, [f"{round(m, 2):g}x", *([f"{w}"] if w is not None else [])]) for m, w in pairs]


def _scale(kind: str, domain: Sequence[Any], values: Sequence[Any]) -> dict[str, Any]:
    scale = {"domain": list(domain), "range": list(values)}
    return {"field": "r", "type": kind, "scale": scale, "legend": None}


def _x(axis: Axis, values: Sequence[float]) -> dict[str, Any]:
    shown: dict[str, Any] = {"title": axis.title, "grid": False, "labelFlush": False, "labelOverlap": False}
    if axis.ticks:
        shown["values"] = [short(at) for at, _ in axis.ticks]
        names = ",".join(f"'{_js(at)}':{list(map(str, label))}" for at, label in axis.ticks)
        shown["labelExpr"] = f"{{{names}}}[toString(datum.value)]"
    else:
        shown |= {"format": "~s", "tickCount": 5}
    scale: dict[str, Any] = {"type": "log", "base": 2} if axis.log else {"zero": True}
    scale |= {
        "domain": [min(values) if axis.log else 0, max(values)],
        "nice": False,
        "padding": 14 if axis.log else 0,
    }
    return {"field": "x", "type": "quantitative", "scale": scale, "axis": shown}


def _js(number: float) -> str:
    """A number as JavaScript makes a text of it."""
    shown = short(number)
    return str(int(shown)) if shown.is_integer() else repr(shown)


def _rules(chart: Chart) -> list[dict[str, Any]]:
    if chart.axis.mark is None:
        return []
    data = {"values": [{"x": chart.axis.mark}]}
    rule = {"type": "rule", "color": FAINT, "strokeDash": [2, 3]}
    name = {"type": "text", "text": "T", "color": INK, "align": "left", "baseline": "top", "dx": 4}
    at_top = {"y": {"value": 2}}
    return [
        {"data": data, "mark": rule},
        {"data": data, "mark": {**name, "fontSize": 12}, "encoding": at_top},
    ]


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
    return short(low - room), short(high + room)


def _near(asked: tuple[float, float] | None, whole: tuple[float, float]) -> tuple[float, float] | None:
    if asked is None:
        return None
    low, high = max(asked[0], whole[0]), min(asked[1], whole[1])
    room = 0.12 * (high - low)
    low, high = short(low - room), short(high + room)
    return (low, high) if high > low and whole[1] - whole[0] > NEAR_PAYS * (high - low) else None
