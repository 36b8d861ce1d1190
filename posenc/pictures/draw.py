"""Draw a picture as a figure, by Vega."""

from __future__ import annotations

import numpy as np

from posenc.pictures.panels import Curves, Map, Panel, Picture
from posenc.report.styles import ON_WHITE
from posenc.report.vega import (
    PAGE_CONFIG,
    SCHEMA,
    Spec,
    draw_svg,
    image_bytes,
    nominal,
    on_paper,
    quantitative,
)

COLUMNS = 2  # panels in a row
PANEL_WIDTH = 190  # points, without its axis
PANEL_HEIGHT = 115  # points
PANEL_GAP = 66  # points from panel to panel, with the axis
SMALLEST_SHARE = 1e-7  # of the largest weight: a logarithmic axis does not show smaller ones
DASHES = ([1, 0], [6, 2], [6, 2, 1, 2], [1, 1.5], [6, 1, 1, 1, 1, 1], [2, 3], [1, 3])
GREY = "#737373"
VIRIDIS = {"scheme": {"name": "viridis", "extent": [0, 0.85]}}  # its end is too pale for a line on white
HIDDEN_COLOR = "#00224E"  # of a key that a query does not see
SEEN_COLOR = "#FEE838"


def picture_bytes(picture: Picture, format: str) -> bytes:
    """Return the content of a file in one of vega.FORMATS, the same bytes for the same picture."""
    return image_bytes(draw_svg(picture_spec(picture)), format)


def picture_spec(picture: Picture) -> Spec:
    """Return the chart of a picture; if the number of panels is odd, the first one has a row to itself."""
    panels = picture.panels
    rows = []
    if len(panels) % COLUMNS:
        rows.append([_panel_spec(panels[0], COLUMNS * PANEL_WIDTH + PANEL_GAP)])
        panels = panels[1:]
    for start in range(0, len(panels), COLUMNS):
        rows.append([_panel_spec(panel, PANEL_WIDTH) for panel in panels[start : start + COLUMNS]])
    channels = ("color", "strokeDash", "strokeWidth", "fill", "stroke")
    own_scales = {"scale": dict.fromkeys(channels, "independent")}
    title = {
        "text": picture.title,
        "subtitle": picture.notes,
        "anchor": "start",
        "fontSize": 9,
        "subtitleFontSize": 7.5,
        "subtitlePadding": 4,
        "offset": 10,
    }
    spec = {
        "$schema": SCHEMA,
        "config": PAGE_CONFIG,
        "title": title,
        "vconcat": [{"hconcat": row, "spacing": 24, "resolve": own_scales} for row in rows],
        "resolve": own_scales,
    }
    return on_paper(spec, {})


def _panel_spec(panel: Panel, width: float) -> Spec:
    """Return the chart of one panel."""
    if isinstance(panel, Map):
        layers = [_squares(panel)]
    else:
        layers = [*_mark_layers(panel, width), _line_layer(panel)]
    title = {"text": panel.title, "anchor": "start", "frame": "group", "fontSize": 8, "offset": 14}
    return {"title": title, "width": width, "height": PANEL_HEIGHT, "layer": layers}


def _squares(panel: Map) -> Spec:
    """Return a square for each query and key, bright where the query sees the key."""
    values = []
    for query, key in zip(*np.nonzero(np.isfinite(panel.seen)), strict=True):
        values.append(
            {"x": panel.positions[key], "y": panel.positions[query], "seen": panel.seen[query, key]}
        )
    axis = {"labelOverlap": True, "labelAngle": 0, "ticks": False}
    color = nominal("seen", legend=None, scale={"domain": [0, 1], "range": [HIDDEN_COLOR, SEEN_COLOR]})
    return {
        "data": {"values": values},
        "mark": {"type": "rect", "strokeWidth": 0.6},
        "encoding": {
            "x": {"field": "x", "type": "ordinal", "title": "key position in tokens", "axis": axis},
            "y": {"field": "y", "type": "ordinal", "title": "query position (yellow: seen)", "axis": axis},
            "fill": color,
            "stroke": color,  # fills the hairlines between squares
        },
    }


def _line_layer(panel: Curves) -> Spec:
    """Return the lines of a panel; a line that the others are compared with is grey."""
    values = []
    smallest = -np.inf
    if panel.y_scale == "log":
        smallest = SMALLEST_SHARE * max(line.y.max() for line in panel.lines)
    for line in panel.lines:
        for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
            if y > smallest:
                values.append({"line": line.label, "x": x, "y": y})
    y_axis = {"title": panel.y_label, "tickCount": 5}
    mark: Spec = {"type": "point", "filled": True, "size": 14} if panel.has_points else {"type": "line"}
    return {
        "data": {"values": values},
        "mark": mark,
        "encoding": {
            "x": quantitative("x", axis=_x_axis(panel), scale=_scale(panel.x_scale)),
            "y": quantitative("y", axis=y_axis, scale=_scale(panel.y_scale)),
            **_line_looks(panel),
        },
    }


def _scale(kind: str) -> Spec:
    return {"type": kind, "zero": False, "nice": False}


def _x_axis(panel: Curves) -> Spec:
    axis: Spec = {"title": panel.x_label}
    if panel.x_scale == "symlog":
        end = max(line.x.max() for line in panel.lines)
        axis["values"] = [0, *(4**power for power in range(20) if 4**power <= end)]  # 1, 4, 16, ...
    return axis


def _line_looks(panel: Curves) -> Spec:
    """Return colour, dashes and width of each line, with one legend."""
    references = [line.label for line in panel.lines if line.is_reference]
    compared = [line.label for line in panel.lines if not line.is_reference]
    labels = [*compared, *references]
    colors = [ON_WHITE[number % len(ON_WHITE)] for number in range(len(compared))]
    colors += [GREY] * len(references)
    color_scale = VIRIDIS if panel.is_ordered else {"range": colors}
    dashes = [DASHES[number % len(DASHES)] for number in range(len(labels))]
    # Each line is thinner than the one below it, so that both are seen where they coincide.
    widths = [1.2 + 0.2 * number for number in reversed(range(len(labels)))]
    legend = None if labels == [""] else {"orient": "bottom", "columns": 3}
    scales = {"color": color_scale, "strokeDash": {"range": dashes}, "strokeWidth": {"range": widths}}
    return {
        channel: {"field": "line", "type": "ordinal", "legend": legend, "scale": {"domain": labels, **scale}}
        for channel, scale in scales.items()
    }


def _mark_layers(panel: Curves, width: float) -> list[Spec]:
    """Return dashed lines with their names: above the panel for places on x, at its right for those on y."""
    layers = []
    rule = {"type": "rule", "color": GREY, "strokeDash": [4, 2], "strokeWidth": 0.8}
    if panel.marks:
        data = {"values": [{"x": place, "name": name} for name, place in panel.marks.items()]}
        text = {"x": quantitative("x"), "y": {"value": -6}, "text": {"field": "name"}}
        layers.append({"data": data, "mark": rule, "encoding": {"x": quantitative("x")}})
        layers.append({"data": data, "mark": {"type": "text", "align": "center"}, "encoding": text})
    if panel.y_marks:
        data = {"values": [{"y": place, "name": name} for name, place in panel.y_marks.items()]}
        text = {"x": {"value": width + 3}, "y": quantitative("y"), "text": {"field": "name"}}
        layers.append({"data": data, "mark": rule, "encoding": {"y": quantitative("y")}})
        layers.append({"data": data, "mark": {"type": "text", "align": "left"}, "encoding": text})
    return layers
