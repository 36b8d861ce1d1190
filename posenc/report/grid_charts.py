"""Grids of coloured cells: the change by row and window, the recall by window and distance."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import altair as alt

from posenc.report.cell_texts import missing_reason
from posenc.report.chart import FINE, Chart, Panel, RowNames, short_number, source_sentence
from posenc.report.line_charts import length_heads
from posenc.report.looks import Look, data_of
from posenc.report.texts import percent_text, unit_text
from posenc.results.beside.recall import RECALL
from posenc.results.cells import Cell
from posenc.results.comparison import Row
from posenc.results.numbers import printed, printed_change
from posenc.results.records import Metric

# A scale of colours goes this much farther than the darkest shade of a cell: its end is too dark for numbers.
SHADE_MARGIN = 1.16
DARK = 0.55  # numbers on darker shades are white
CELL_HEIGHT = 13.7  # points
HEAD_LINE = 9  # points
LARGEST_CHANGE = 1e30  # a perplexity may be infinite
NO_NUMBER = "#D9D9D9"
BLACK = "#1A1A1A"
Meaning = Literal["nothing", "loss", "change", "recall", "share"]


@dataclass(frozen=True)
class Square:
    """A cell of a grid with its text."""

    panel: str
    row: str
    column: str
    meaning: Meaning  # what the text says
    text: str
    shade: float | None  # place on the scale of colours


@dataclass(frozen=True)
class Content:
    """What a cell says, and its place on the scale of colours."""

    meaning: Meaning
    text: str
    shade: float | None = None


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


def recall_grid(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    """Return a panel for each row: its rows are windows, its columns distances, its cells the share found."""
    squares = [square for panel in panels for square in _recall_squares(panel, names)]
    if not squares:
        return None
    caption = f"Per cent of planted values found at a distance, in a window; {source_sentence(panels)}"
    return grid_of_shares("Recall", squares, ("distance (tokens)", "window (tokens)"), caption, look)


def grid_of_shares(
    title: str, squares: Sequence[Square], axis_titles: tuple[str, str], caption: str, look: Look
) -> Chart:
    """Return shares in blue, with numbers along both axes: `axis_titles` are those of columns and rows."""
    column_title, row_title = axis_titles
    columns = {square.column for square in squares}
    rows = {square.row for square in squares}
    x_axis = alt.Axis(title=column_title, orient="top", labelAngle=0, ticks=False, domain=False)
    y_axis = alt.Axis(title=row_title, labelColor=look.faint, ticks=False, domain=False)
    return Chart(
        title=title,
        layers=grid_layers(
            squares,
            # As text, 128 comes before 64.
            x=alt.X("column:O", sort=sorted(columns, key=float), axis=x_axis),
            y=alt.Y("row:O", sort=sorted(rows, key=float), axis=y_axis),
            colors=alt.Scale(scheme="blues", domain=[0, SHADE_MARGIN]),
        ),
        panels=list(dict.fromkeys(square.panel for square in squares)),
        rows=[],
        caption=caption,
        height=alt.Step(CELL_HEIGHT),
    )


def grid_layers(squares: Sequence[Square], x: alt.X, y: alt.Y, colors: alt.Scale) -> alt.LayerChart:
    """Return coloured cells with their texts."""
    without_shade = alt.expr.if_(alt.datum.meaning == "nothing", NO_NUMBER, "white")
    color = (
        alt.when(alt.expr.isValid(alt.datum.shade))
        .then(alt.Color("shade:Q", scale=colors, legend=None))
        .otherwise(alt.value(without_shade))
    )
    is_dark = alt.expr.abs(alt.datum.shade) > DARK
    text_color = alt.when(is_dark).then(alt.value("white")).otherwise(alt.value(BLACK))
    cells = alt.Chart().mark_rect(stroke="white", strokeWidth=1).encode(x=x, y=y, color=color)
    texts = alt.Chart().mark_text(baseline="middle").encode(x=x, y=y, text="text:N", color=text_color)
    return alt.LayerChart(layer=[cells, texts], data=data_of(squares))


# --- the cells


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


def _recall_squares(panel: Panel, names: RowNames) -> Iterator[Square]:
    """Yield each row's recall by window and distance, with as many pairs as in training."""
    for row in panel.comparison.rows:
        recall = RECALL.of(row)
        if recall is None:
            continue
        training_pairs = {cell.pairs for cell in recall.cells if cell is not None}
        title = f"{names.name(row)}, {panel.title}" if panel.title else names.name(row)
        for cell in recall.grid:
            # Other numbers of pairs have the same window and distance, and a square has room for one number.
            if cell.pairs in training_pairs:
                yield Square(
                    panel=title,
                    row=str(cell.window),
                    column=str(cell.distance),
                    meaning="recall",
                    text=percent_text(cell).removesuffix("%"),
                    shade=short_number(cell.accuracy),
                )
