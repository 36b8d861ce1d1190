"""Draw pictures of encodings by Vega as PNG, SVG or PDF, or write their numbers for a terminal."""

from __future__ import annotations

import textwrap

import numpy as np

from posenc.report.charts import FORMATS, Spec, image, on_paper, template, vega
from posenc.report.pictures import Curves, Map, Picture
from posenc.report.series import ON_WHITE
from posenc.report.table import CellText, Table
from posenc.report.writers import table_lines

__all__ = ["FORMATS", "TEXT_WIDTH", "picture_bytes", "picture_spec", "picture_text"]
PANEL, HEIGHT, BETWEEN, COLUMNS = 190, 115, 66, 2  # points: a panel without its axis; panels in a row
LOG_RANGE = 1e7  # of a logarithmic axis: weights below that share of the largest are not shown
DASHES = ([1, 0], [6, 2], [6, 2, 1, 2], [1, 1.5], [6, 1, 1, 1, 1, 1], [2, 3], [1, 3])
GREY, DARK, BRIGHT = "#737373", "#00224E", "#FEE838"
HEAD = {"anchor": "start", "fontSize": 9, "subtitleFontSize": 7.5, "subtitlePadding": 4, "offset": 10}
TEXT_WIDTH = 80  # columns of a terminal
MOST_NUMBERS = 7  # of a line


def picture_bytes(picture: Picture, format: str) -> bytes:
    """Return a file's content, the same bytes for the same picture; `format` is one of FORMATS."""
    return image(vega().vegalite_to_svg(picture_spec(picture), allowed_base_urls=[]), format)


def picture_spec(picture: Picture) -> Spec:
    """Return the chart of a picture; of an odd number of panels the first has a row of its own."""
    odd = len(picture.panels) % COLUMNS
    panels = [_panel(one, PANEL) for one in picture.panels]
    if odd:
        panels[0] = _panel(picture.panels[0], COLUMNS * PANEL + BETWEEN)
    rows = [panels[:odd], *(panels[i : i + COLUMNS] for i in range(odd, len(panels), COLUMNS))]
    alone = dict.fromkeys(("color", "strokeDash", "strokeWidth", "fill", "stroke"), "independent")
    spec = template("lines") | {"title": HEAD | {"text": picture.title, "subtitle": picture.notes}}
    resolve = {"resolve": {"scale": alone}}
    spec["vconcat"] = [{"hconcat": row, "spacing": 24} | resolve for row in rows if row]
    shown = {key: spec[key] for key in ("$schema", "config", "title", "vconcat")}
    return on_paper(shown | resolve, {})


def _panel(panel: Curves | Map, width: float) -> Spec:
    title = {"text": panel.title, "anchor": "start", "frame": "group", "fontSize": 8, "offset": 14}
    layers = [_map(panel)] if isinstance(panel, Map) else [*_marks(panel, width), _lines(panel)]
    return {"title": title, "width": width, "height": HEIGHT, "layer": layers}


def _map(panel: Map) -> Spec:
    """Return a square for each query and key: bright where it is seen."""
    places = zip(*np.nonzero(np.isfinite(panel.z)), strict=True)
    values = [{"x": panel.at[j], "y": panel.at[i], "seen": panel.z[i, j]} for i, j in places]
    shade = {"field": "seen", "type": "nominal", "scale": {"domain": [0, 1], "range": [DARK, BRIGHT]}}
    axis = {"type": "ordinal", "axis": {"labelOverlap": True, "labelAngle": 0, "ticks": False}}
    return {
        "data": {"values": values},
        "mark": {"type": "rect", "strokeWidth": 0.6},  # without a stroke white seams show between them
        "encoding": {
            "x": axis | {"field": "x", "title": panel.x_label},
            "y": axis | {"field": "y", "title": f"{panel.y_label} (yellow: seen)"},
            **dict.fromkeys(("fill", "stroke"), shade | {"legend": None}),
        },
    }


def _lines(panel: Curves) -> Spec:
    """Return the lines; those that the others are compared with are grey."""
    labels = [line.label for line in sorted(panel.lines, key=lambda line: line.reference)]
    greys, top = sum(line.reference for line in panel.lines), max(line.y.max() for line in panel.lines)
    values = [
        {"line": line.label, "x": x, "y": y}
        for line in panel.lines
        for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)
        if panel.y_scale == "linear" or y > top / LOG_RANGE
    ]
    colors = [*(ON_WHITE * 9)[: len(labels) - greys], *[GREY] * greys]
    scales = {
        "color": {"scheme": {"name": "viridis", "extent": [0, 0.85]}} if panel.ordered else {"range": colors},
        "strokeDash": {"range": [DASHES[i % len(DASHES)] for i in range(len(labels))]},
        # each thinner than the one before: seen if they coincide
        "strokeWidth": {"range": [1.2 + 0.2 * i for i in range(len(labels))][::-1]},
    }
    legend = None if labels == [""] else {"orient": "bottom", "columns": 3}
    look = {"field": "line", "type": "ordinal", "legend": legend}
    far = max(line.x.max() for line in panel.lines)
    x = {"values": [0, *(4**k for k in range(20) if 4**k <= far)]} if panel.x_scale == "symlog" else {}
    scale = {"zero": False, "nice": False}
    return {
        "data": {"values": values},
        "mark": {"type": "point", "filled": True, "size": 14} if panel.points else {"type": "line"},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "axis": x | {"title": panel.x_label}}
            | {"scale": scale | {"type": panel.x_scale}},
            "y": {"field": "y", "type": "quantitative", "axis": {"title": panel.y_label, "tickCount": 5}}
            | {"scale": scale | {"type": panel.y_scale}},
            **{key: look | {"scale": {"domain": labels, **own}} for key, own in scales.items()},
        },
    }


def _marks(panel: Curves, width: float) -> list[Spec]:
    """Return dashed lines with their names: above at places on x, at the right on y."""
    rule = {"type": "rule", "color": GREY, "strokeDash": [4, 2], "strokeWidth": 0.8}
    found: list[Spec] = []
    above, right = {"y": {"value": -6}}, {"x": {"value": width + 3}}
    for channel, marks, place in (("x", panel.marks, above), ("y", panel.y_marks, right)):
        data = {"data": {"values": [{channel: at, "name": name} for name, at in marks.items()]}}
        at = {channel: {"field": channel, "type": "quantitative"}}
        words = {"type": "text", "align": "center" if channel == "x" else "left"}
        named = at | place | {"text": {"field": "name"}}
        found += [data | {"mark": rule, "encoding": at}, data | {"mark": words, "encoding": named}]
    return [one for one in found if one["data"]["values"]]


# --- as text


def picture_text(picture: Picture) -> str:
    """Return title, notes and the numbers of each panel, one below the other, 80 columns wide."""
    head = [
        textwrap.fill(line, TEXT_WIDTH, subsequent_indent="  ") for line in (picture.title, *picture.notes)
    ]
    tables = [table_lines(_numbers(panel), TEXT_WIDTH) for panel in picture.panels]
    return "\n\n".join(
        "\n".join(lines) for lines in (head, *([t.plain.rstrip() for t in one] for one in tables))
    )


def _numbers(panel: Curves | Map) -> Table:
    """Return a row for each line: its values at the ends, at the marks, and at some places between them."""
    if isinstance(panel, Map):
        seen = [CellText("the last query"), CellText(f"{np.nansum(panel.z[-1]):.0f} of {panel.z.shape[1]}")]
        return Table(["", "keys seen"], [seen], panel.title)
    every = np.unique(np.concatenate([line.x for line in panel.lines]))
    powers = [4.0**k for k in range(20) if 4.0**k < every[-1]]
    between = np.linspace(every[0], every[-1], MOST_NUMBERS) if panel.x_scale == "linear" else powers
    wanted = [every[0], *between, *panel.marks.values(), every[-1]]
    at = np.unique(every[np.abs(every[:, None] - np.array(wanted)).argmin(0)]).tolist()
    at = at if len(at) <= MOST_NUMBERS else [at[0], *at[1 - MOST_NUMBERS :]]
    names = {value: name for name, value in panel.marks.items()}
    rows = []
    for line in panel.lines:
        known = zip(line.x.tolist(), line.y.tolist(), strict=True)
        texts = {x: f"{y + 0.0:,.0f}" if 100 <= abs(y) < 1e6 else f"{y + 0.0:.3g}" for x, y in known}
        rows.append([CellText(line.label), *(CellText(texts.get(x, "")) for x in at)])
    heads = [panel.x_label, *(names.get(x, f"{x:g}") for x in at)]
    return Table(heads, rows, f"{panel.title}: {panel.y_label}")
