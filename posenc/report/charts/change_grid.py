"""The change by row and window, as a grid of coloured cells."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

import altair as alt

from posenc.report.cell_texts import missing_reason
from posenc.report.charts.base import FINE, Chart, Panel, RowNames, source_sentence
from posenc.report.charts.grids import CELL_HEIGHT, SHADE_MARGIN, Content, Square, grid_layers
from posenc.report.charts.looks import Look
from posenc.report.charts.losses import length_heads
from posenc.report.texts import unit_text
from posenc.results.cells import Cell
from posenc.results.numbers import printed, printed_change
from posenc.results.records import Metric
from posenc.results.rows import Row

HEAD_LINE = 9  # points
LARGEST_CHANGE = 1e30  # a perplexity may be infinite


def change_grid(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    """Return cells coloured by the change, each with its number or its reason; at T the loss itself."""
    largest_logarithm = _largest_logarithm(panels)
    squares = [square for panel in panels for square in _change_squares(panel, names, largest_logarithm)]
    if not squares:
        return None
    heads: dict[str, list[str]] = {}  # of the columns, by multiple
    for panel in panels:
        for column in panel.comparison.columns:
            # Panels may differ in T, so a multiple is the same number of tokens only in a single panel.
            window = column.window if len(panels) == 1 else None
            heads[f"{column.multiple:g}"] = length_heads(column.multiple, window)
    most_lines = max(len(lines) for lines in heads.values())
    x_axis = alt.Axis(
        title=None,
        orient="top",
        labelAngle=0,
        labelExpr=f"{json.dumps(heads)}[datum.value]",
        labelPadding=4 + HEAD_LINE * (most_lines - 1),  # Vega writes further lines below the first
        ticks=False,
        domain=False,
    )
    y_axis = alt.Axis(title=None, labelColor=look.ink, labelLimit=220, ticks=False, domain=False)
    unit = unit_text(panels[0].comparison.header)
    meaning = f"Change against the loss at T in {unit}: red is worse, blue is better; at T the loss itself."
    return Chart(
        title="Change against T",
        layers=grid_layers(
            squares,
            x=alt.X("column:O", sort=sorted(heads, key=float), axis=x_axis),
            # The rows stay in the order of the table. Vega-Lite would sort them by name.
            y=alt.Y("row:O", sort=None, axis=y_axis),
            colors=alt.Scale(scheme="redblue", reverse=True, domain=[-1, 1]),
        ),
        panels=[panel.title for panel in panels],
        rows=[],
        caption=f"{source_sentence(panels)} {meaning}",
        height=alt.Step(CELL_HEIGHT),
        has_own_scales=True,
    )


def _change_squares(panel: Panel, names: RowNames, largest_logarithm: float) -> Iterator[Square]:
    """Yield the cells of a panel; `largest_logarithm` is that of the change with the darkest shade."""
    comparison = panel.comparison
    for row in comparison.rows:
        for column, cell in zip(comparison.columns, row.cells, strict=True):
            content = _change_content(row, cell, comparison.header.metric, largest_logarithm)
            yield Square(
                panel=panel.title,
                row=names.name(row),
                column=f"{column.multiple:g}",
                meaning=content.meaning,
                text=content.text,
                shade=content.shade,
            )


def _largest_logarithm(panels: Sequence[Panel]) -> float:
    """Return log(1 + c / FINE) of the largest finite change c, which has the darkest shade."""
    largest = 0.0
    for panel in panels:
        for row in panel.comparison.rows:
            for cell in row.cells:
                if cell.change is not None and math.isfinite(cell.change):
                    largest = max(largest, abs(cell.change))
    # One scale for all panels, so that a shade means the same change in each of them.
    return math.log1p((largest or 1.0) / FINE)


def _change_content(row: Row, cell: Cell, metric: Metric, largest_logarithm: float) -> Content:
    """Return the change with its shade; at T the loss; without a number the reason."""
    if cell.mean is None:
        return Content("nothing", missing_reason(cell))
    if cell.change is None:  # there is no loss at T to compare with
        return Content("loss", f"({printed(cell.mean, metric)})")
    if row.extend is None and cell.multiple == 1:
        return Content("loss", printed(cell.mean, metric))
    # The scale is linear around 0 and logarithmic beyond FINE, the same for worse and better. 0 is white.
    logarithm = math.log1p(min(abs(cell.change), LARGEST_CHANGE) / FINE)
    shade = logarithm / largest_logarithm / SHADE_MARGIN
    # A minus sign is as wide as a plus, so that the digits of a column stay below each other.
    text = printed_change(cell.change, metric).replace("-", "−")
    return Content("change", text, math.copysign(shade, cell.change))
