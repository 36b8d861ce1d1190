"""Grids of coloured cells, each with its text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import altair as alt

from posenc.report.charts.base import Chart
from posenc.report.charts.looks import Look, data_of

# A scale of colours goes this much farther than the darkest shade of a cell: its end is too dark for numbers.
SHADE_MARGIN = 1.16
DARK = 0.55  # numbers on darker shades are white
CELL_HEIGHT = 13.7  # points
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
