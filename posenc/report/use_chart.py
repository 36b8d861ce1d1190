"""Harm and use: a point for each row, harm to the right and use upward, with its name beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from posenc.report.chart import (
    FINE,
    Chart,
    Panel,
    Point,
    RowNames,
    band_ends,
    change_axis,
    change_scale,
    point_size,
    row_channels,
    selections,
    short_number,
    source_note,
    tooltip,
    visible_if_chosen,
)
from posenc.report.texts import percent_text, unit_text
from posenc.report.vega import FAINT, PAGE_CONFIG, SCHEMA, Spec, nominal, quantitative
from posenc.results.comparison import Comparison
from posenc.results.records import RECALL

HEIGHT = 230  # points, of a panel with names beside its points
CHARACTER = 3.4  # points, the width of a character of small text
HALF_LINE = 3.5  # points
DOMAIN_FACTOR = 1.3  # the width of the axis of changes over that of the changes
RULE = "Top left: far text is used and does no harm; bottom left: it is not used; bottom right: it harms."


def use_chart(panels: Sequence[Panel], names: RowNames) -> Chart | None:
    """Return a point for each row at the longest window with both; the change is logarithmic beyond FINE."""
    points: list[Point] = []
    multiples = set()
    for panel in panels:
        multiple = _longest_shared_window(panel.comparison)
        if multiple is None:
            continue
        points_of_panel = _points_at(panel, names, multiple)
        if points_of_panel:
            points += points_of_panel
            multiples.add(multiple)
    if not points:
        return None
    rows = list(dict.fromkeys(point["row"] for point in points))
    window = "the longest window" if len(multiples) > 1 else f"{multiples.pop():g}x"
    unit = unit_text(panels[0].comparison.header)
    notes = [source_note(panels), RULE, "Recall with its 95% CI."]
    weak = dict.fromkeys(point["row"] for point in points if not point["learned"])
    if weak:
        notes.append(f"Did not learn to recall: {', '.join(weak)}.")
    return Chart(
        title="Harm and use",
        spec=_use_spec(points, rows, names, window, unit),
        panels=list(dict.fromkeys(point["panel"] for point in points)),
        rows=rows,
        note=" ".join(notes),
        names_points=True,
    )


def _longest_shared_window(comparison: Comparison) -> float | None:
    """Return the longest window, as a multiple of T, that has both losses and recall."""
    # The protocol `recall` asks for values in windows of its own, whose losses are no change.
    if comparison.recall is None or comparison.header.protocol == RECALL:
        return None
    measured = {column.multiple for column in comparison.columns}
    return max((multiple for multiple in comparison.recall.multiples if multiple in measured), default=None)


def _points_at(panel: Panel, names: RowNames, multiple: float) -> list[Point]:
    """Return each row's change of the loss and recall in a window, with their bands."""
    comparison = panel.comparison
    assert comparison.recall is not None
    index = [column.multiple for column in comparison.columns].index(multiple)
    recall_index = comparison.recall.multiples.index(multiple)
    points = []
    for row in comparison.rows:
        cell = row.cells[index]
        farthest = None if row.recall is None else row.recall.beyond[recall_index]
        if row.recall is None or farthest is None or cell.change is None or not math.isfinite(cell.change):
            continue
        name = names.name(row)
        learned = row.recall.learned is not False
        text = f"{tooltip(name, cell, comparison.header.metric)}\nrecall {percent_text(farthest)}"
        low, high = farthest.ci95
        point: Point = {
            "panel": panel.title,
            "row": name,
            "x": short_number(cell.change),
            "y": short_number(100 * farthest.accuracy),
            "low": short_number(100 * low),
            "high": short_number(100 * high),
            "learned": learned,
            "text": text if learned else f"{text}, did not learn",
        }
        ends = band_ends(cell, cell.change, cell.change_spread)
        if ends is not None:
            point["left"], point["right"] = ends
        points.append(point)
    return points


def _use_spec(points: Sequence[Point], rows: Sequence[str], names: RowNames, window: str, unit: str) -> Spec:
    changes = [point[key] for point in points for key in ("x", "left", "right") if key in point]
    low = DOMAIN_FACTOR * min(*changes, -FINE)
    high = DOMAIN_FACTOR * max(*changes, FINE)
    x_title = f"harm: change of the loss at {window} against T ({unit})"
    x_axis = {"grid": False, "labelOverlap": True, "title": x_title, **change_axis(low, high)}
    y_axis = {"values": [0, 25, 50, 75, 100], "minExtent": 28, "title": f"use: recall at {window} (%)"}
    channels = row_channels(rows, names)
    faint_rule = {"type": "rule", "clip": True, "opacity": 0.5}
    return {
        "$schema": SCHEMA,
        "config": PAGE_CONFIG,
        "data": {"values": list(points)},
        "encoding": {
            "x": quantitative("x", scale=change_scale(low, high, FINE), axis=x_axis),
            "y": quantitative("y", scale={"domain": [0, 100], "nice": False}, axis=y_axis),
        },
        "layer": [
            {
                "mark": {"type": "rule", "color": FAINT, "strokeDash": [2, 3]},
                "data": {"values": [{"x": 0}]},
                "encoding": {"y": None},
            },
            {
                "mark": faint_rule,
                "encoding": {"y": quantitative("low"), "y2": {"field": "high"}, "color": channels.color},
            },
            {
                "mark": faint_rule,
                "transform": [{"filter": "isValid(datum.left)"}],
                "encoding": {"x": quantitative("left"), "x2": {"field": "right"}, "color": channels.color},
            },
            {
                "params": selections(),
                "mark": {"type": "point", "filled": True},
                "encoding": {
                    "color": channels.color,
                    "shape": channels.shape,
                    "opacity": visible_if_chosen(1),
                    "size": point_size(80),
                    "tooltip": nominal("text"),
                },
            },
        ],
    }


# --- names beside the points, for a file, which has no tooltip


@dataclass(frozen=True)
class Box:
    """A rectangle on the panel, in points from its top left corner."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """Return the area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(0.0, width) * max(0.0, height)


def names_layer(spec: Spec, width: float) -> Spec:
    """Return a layer with the names of the points of a panel, each where it covers the least."""
    low, high = spec["encoding"]["x"]["scale"]["domain"]
    left = _symlog(low)
    scale = width / (_symlog(high) - left)  # points on paper for each unit of the bent axis
    points = spec["data"]["values"]
    boxes = _place_names(points, width, left, scale)
    values = []
    for point, box in zip(points, boxes, strict=True):
        middle = box.top + HALF_LINE
        values.append(
            {"row": point["row"], "x": _change_at(left + box.left / scale), "y": 100 * (1 - middle / HEIGHT)}
        )
    return {
        "data": {"values": values},
        "mark": {"type": "text", "align": "left", "baseline": "middle", "fontSize": 6},
        "encoding": {"text": nominal("row"), "color": spec["layer"][-1]["encoding"]["color"]},
    }


def _place_names(points: Sequence[Point], width: float, left: float, scale: float) -> list[Box]:
    """Return a box for each name, left or right of its point and up to six lines above or below it.

    One name after the other takes the box that costs the least: what it covers of points, of intervals and of
    earlier names, ten times what leaves the panel, and its distance from the point.
    """
    panel = Box(0, 0, width, HEIGHT)
    centres = [((_symlog(point["x"]) - left) * scale, _height_of(point["y"])) for point in points]
    taken = [Box(x - 3, y - 3, x + 3, y + 3) for x, y in centres]
    for (x, _), point in zip(centres, points, strict=True):
        taken.append(Box(x - 1, _height_of(point["high"]), x + 1, _height_of(point["low"])))
    boxes = []
    for (x, y), point in zip(centres, points, strict=True):
        length = CHARACTER * len(point["row"])
        costs: dict[Box, float] = {}
        for down in range(-36, 37, 6):
            for start in (x + 5, x - 5 - length):
                box = Box(start, y + down - HALF_LINE, start + length, y + down + HALF_LINE)
                covered = sum(box.overlap(other) for other in taken)
                outside = 2 * HALF_LINE * length - box.overlap(panel)
                costs[box] = covered + 10 * outside + 2 * abs(down)
        best = min(costs, key=lambda box: costs[box])
        boxes.append(best)
        taken.append(best)
    return boxes


def _height_of(percent: float) -> float:
    return HEIGHT * (1 - percent / 100)


def _symlog(change: float) -> float:
    """Return the place of a change on the bent axis of Vega's symlog scale."""
    return math.copysign(math.log1p(abs(change) / FINE), change)


def _change_at(bent: float) -> float:
    """Invert `_symlog`."""
    return math.copysign(FINE * math.expm1(abs(bent)), bent)
