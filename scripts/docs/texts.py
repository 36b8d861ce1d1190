"""Draw the verdict of each encoding by text: those of docs/records/study-texts.

    python scripts/docs/texts.py docs/pictures/study/texts.png

A cell is a model and a text: its colour is the verdict at 8T, its number the change of the loss in nats.
Rows go from the least harm on SymPy to the most.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt
from figures import png_of
from posenc_output import last_cell
from text_tables import UNDERTRAINED, TextColumn, encodings_by_harm, text_columns, word_of_row

from posenc.report.charts.looks import PAPER, data_of

CELL_WIDTH = 62  # points
CELL_HEIGHT = 14
# from blue over grey to red, which the colour-blind can tell apart, too
COLORS = {
    "better": "#3d7fc1",
    "same": "#a9cbe8",
    "unclear": "#dedede",
    "worse": "#f4b183",
    "collapsed": "#c0432f",
    UNDERTRAINED: "#ffffff",
}
DARK_WORDS = ("better", "collapsed")  # their numbers are white


@dataclass(frozen=True)
class Square:
    """A cell of the figure."""

    trained_on: str
    measured_on: str
    row: str
    verdict: str
    text: str


def squares_of(columns: Sequence[TextColumn], rows: Sequence[str]) -> list[Square]:
    """Return the cells of all columns."""
    squares = []
    for column in columns:
        for name in rows:
            if name in column.rows:
                cell = last_cell(column.rows[name])
                text = f"{cell['change']:+.3f}".replace("-", "−")
                word = word_of_row(column.rows[name])
                squares.append(Square(column.trained_on, column.measured_on, name, word, text))
    return squares


def panel(columns: Sequence[TextColumn], rows: Sequence[str], with_names: bool) -> alt.LayerChart:
    """Return the cells of the models that were trained on one text."""
    trained_on = columns[0].trained_on
    texts = [column.measured_on for column in columns]
    title = f"trained on {trained_on}, measured on"
    x_axis = alt.Axis(orient="top", labelAngle=0, ticks=False, domain=False, title=title)
    y_axis = alt.Axis(ticks=False, domain=False, labels=with_names, title=None)
    x = alt.X("measured_on:O", sort=texts, axis=x_axis)
    # with the domain, rows that a panel lacks keep their place
    y = alt.Y("row:O", sort=list(rows), scale=alt.Scale(domain=list(rows)), axis=y_axis)
    color = alt.Color(
        "verdict:N",
        scale=alt.Scale(domain=list(COLORS), range=list(COLORS.values())),
        legend=alt.Legend(title="at 8T", orient="bottom", columns=6, symbolStrokeColor="#999999"),
    )
    is_dark = alt.FieldOneOfPredicate("verdict", list(DARK_WORDS))
    text_color = alt.when(is_dark).then(alt.value("white")).otherwise(alt.value(PAPER.ink))
    cells = alt.Chart().mark_rect(stroke="white", strokeWidth=1).encode(x=x, y=y, color=color)
    numbers = alt.Chart().mark_text(baseline="middle").encode(x=x, y=y, text="text:N", color=text_color)
    return (
        alt.LayerChart(layer=[cells, numbers])
        .transform_filter(alt.datum.trained_on == trained_on)
        .properties(width=CELL_WIDTH * len(texts), height=CELL_HEIGHT * len(rows))
    )


def texts_png() -> bytes:
    """Return the picture."""
    columns = text_columns("study-texts")
    rows = encodings_by_harm(columns)
    panels = []
    for trained_on in dict.fromkeys(column.trained_on for column in columns):
        columns_of_panel = [column for column in columns if column.trained_on == trained_on]
        panels.append(panel(columns_of_panel, rows, with_names=not panels))
    squares = data_of(squares_of(columns, rows))
    return png_of(alt.hconcat(*panels, data=squares, spacing=10))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="the PNG")
    parser.parse_args().out.write_bytes(texts_png())
