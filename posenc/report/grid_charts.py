"""Grids of coloured cells: the change by row and window, the recall by window and distance."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from posenc.report.chart import FINE, Chart, Panel, Point, RowNames, short_number, source_note
from posenc.report.line_charts import length_heads
from posenc.report.texts import percent_text, unit_text
from posenc.report.vega import FAINT, INK, PAGE_CONFIG, SCHEMA, Spec, nominal, quantitative
from posenc.results.cells import Cell, short_note
from posenc.results.comparison import Comparison, Row
from posenc.results.numbers import printed, printed_change

DARKEST = 1.16  # shades go from 0 to 1/DARKEST: the ends of the colours are too dark for numbers
CELL_HEIGHT = 13.7  # points
HEAD_LINE = 9  # points
LARGEST_CHANGE = 1e30  # a perplexity may be infinite
NO_NUMBER = "#D9D9D9"


def change_grid(panels: Sequence[Panel], names: RowNames) -> Chart | None:
    """Return cells coloured by the change, each with its number or its reason; at T the loss itself."""
    darkest = _darkest_change(panels)
    points: list[Point] = []
    heads: dict[str, list[str]] = {}  # of the columns, by multiple
    for panel in panels:
        columns = panel.comparison.columns
        for column in columns:
            window = column.window if len(panels) == 1 else None
            heads[f"{column.multiple:g}"] = length_heads(column.multiple, window)
        for row in panel.comparison.rows:
            for column, cell in zip(columns, row.cells, strict=True):
                point = {"panel": panel.title, "row": names.name(row), "column": f"{column.multiple:g}"}
                points.append(point | _change_look(panel.comparison, row, cell, darkest))
    if not points:
        return None
    most_lines = max(len(lines) for lines in heads.values())
    x_axis = {
        "title": None,
        "labelExpr": f"{json.dumps(heads)}[datum.value]",
        "labelPadding": 4 + HEAD_LINE * (most_lines - 1),  # a head of two lines hangs down
    }
    spec = _grid_spec(
        points,
        x={"sort": sorted(heads, key=float), "axis": x_axis},
        y={"sort": None, "axis": {"title": None}},
        color_scale={"scheme": "redblue", "reverse": True, "domain": [-1, 1]},
    )
    unit = unit_text(panels[0].comparison.header)
    meaning = f"Change against the loss at T in {unit}: red is worse, blue is better; at T the loss itself."
    return Chart(
        title="Change against T",
        spec=spec,
        panels=[panel.title for panel in panels],
        rows=[],
        note=f"{source_note(panels)} {meaning}",
        has_own_scales=True,
    )


def recall_grid(panels: Sequence[Panel], names: RowNames) -> Chart | None:
    """Return a panel for each row: windows below each other, distances beside each other, the share found."""
    points = [point for panel in panels for point in _recall_points(panel, names)]
    if not points:
        return None
    distances = {point["column"] for point in points}
    windows = {point["row"] for point in points}
    spec = _grid_spec(
        points,
        x={"sort": sorted(distances, key=int), "axis": {"title": "distance (tokens)", "labelColor": FAINT}},
        y={"sort": sorted(windows, key=int), "axis": {"title": "window (tokens)", "labelColor": FAINT}},
        color_scale={"scheme": "blues", "domain": [0, DARKEST]},
    )
    return Chart(
        title="Recall",
        spec=spec,
        panels=list(dict.fromkeys(point["panel"] for point in points)),
        rows=[],
        note=f"Per cent of planted values found at a distance, in a window; {source_note(panels)}",
    )


def _grid_spec(points: Sequence[Point], x: Spec, y: Spec, color_scale: Spec) -> Spec:
    x_axis = {"orient": "top", "labelAngle": 0, "ticks": False, "domain": False}
    y_axis = {"ticks": False, "domain": False, "labelLimit": 220, "labelColor": INK}
    special_cells = [
        {"test": "datum.of === 'nothing'", "value": NO_NUMBER},
        {"test": "datum.of === 'loss'", "value": "white"},
    ]
    color = quantitative("shade", condition=special_cells, legend=None, scale=color_scale)
    text_color = {"condition": {"test": "abs(datum.shade) > 0.55", "value": "white"}, "value": "#1A1A1A"}
    return {
        "$schema": SCHEMA,
        "config": PAGE_CONFIG,
        "data": {"values": list(points)},
        "height": {"step": CELL_HEIGHT},
        "encoding": {
            "x": {"field": "column", "type": "ordinal", **x, "axis": {**x_axis, **x["axis"]}},
            "y": {"field": "row", "type": "ordinal", **y, "axis": {**y_axis, **y["axis"]}},
        },
        "layer": [
            {"mark": {"type": "rect", "stroke": "white", "strokeWidth": 1}, "encoding": {"color": color}},
            {
                "mark": {"type": "text", "baseline": "middle"},
                "encoding": {"text": nominal("text"), "color": text_color},
            },
        ],
    }


def _darkest_change(panels: Sequence[Panel]) -> float:
    """Return the largest finite change, as its distance from 0 on the scale of the colours."""
    largest = 0.0
    for panel in panels:
        for row in panel.comparison.rows:
            for cell in row.cells:
                if cell.change is not None and math.isfinite(cell.change):
                    largest = max(largest, abs(cell.change))
    return math.log1p((largest or 1.0) / FINE)


def _change_look(comparison: Comparison, row: Row, cell: Cell, darkest: float) -> Point:
    """Return the text of a cell, its shade, and what it is of: `nothing`, the `loss` or the `change`."""
    metric = comparison.header.metric
    if cell.mean is None:
        return {"shade": None, "of": "nothing", "text": short_note(cell.note or "")[:8]}
    if cell.change is None:
        return {"shade": None, "of": "loss", "text": f"({printed(cell.mean, metric)})"}
    if row.extend is None and cell.multiple == 1:
        return {"shade": None, "of": "loss", "text": printed(cell.mean, metric)}
    # As many decades to worse as to better, so that 0 is white.
    shade = math.log1p(min(abs(cell.change), LARGEST_CHANGE) / FINE) / darkest / DARKEST
    text = printed_change(cell.change, metric).replace("-", "−")
    return {"shade": math.copysign(shade, cell.change), "of": "change", "text": text}


def _recall_points(panel: Panel, names: RowNames) -> Iterator[Point]:
    """Yield each row's recall by window and distance, with as many pairs as in training."""
    for row in panel.comparison.rows:
        if row.recall is None:
            continue
        training_pairs = {cell.pairs for cell in (row.recall.within, *row.recall.beyond) if cell is not None}
        title = f"{names.name(row)}, {panel.title}" if panel.title else names.name(row)
        for cell in row.recall.grid:
            if cell.pairs in training_pairs:
                yield {
                    "panel": title,
                    "row": str(cell.window),
                    "column": str(cell.distance),
                    "of": "recall",
                    "shade": short_number(cell.accuracy),
                    "text": percent_text(cell).removesuffix("%"),
                }
