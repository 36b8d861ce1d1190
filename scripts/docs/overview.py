"""Draw every encoding of the study in one figure: loss at T, harm, use and room.

    python scripts/docs/overview.py docs/pictures/study/overview.png

Rows go from the least harm to the most. Loss, harm and use are those of docs/records/study-recall; use is
hollow where the model did not learn to recall. Room is that of docs/records/study-room: filled is what models
trained at 8T gain there, hollow is what models trained at T gain, drawn if they keep their loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt
from figures import png_of
from posenc_output import Json, cell_at, compare, last_cell, verdict_word

from posenc.report.charts.base import SIGNED_LABEL
from posenc.report.charts.looks import PAPER, data_of

ROW_HEIGHT = 10.5  # points
COLOR = "#2a78d6"


@dataclass(frozen=True)
class Mark:
    """A dot with its interval in one panel."""

    panel: str
    row: str
    x: float
    low: float
    high: float
    counts: bool = True  # a dot that does not count is hollow


@dataclass(frozen=True)
class Panel:
    """One of the figure's columns."""

    name: str
    title: str
    width: int  # points
    scale: alt.Scale
    ticks: Sequence[float] | None  # None: as Vega chooses them
    has_zero_line: bool

    def channel(self, field: str) -> alt.X:
        """Return the channel that draws a field along the axis of this panel."""
        axis = alt.Axis(tickCount=4, grid=False, titlePadding=3)
        if self.ticks is not None:
            axis = alt.Axis(
                values=list(self.ticks), grid=False, titlePadding=3, format="~g", labelExpr=SIGNED_LABEL
            )
        return alt.X(f"{field}:Q", title=self.title, scale=self.scale, axis=axis)


PANELS = (
    Panel(
        name="loss",
        title="loss at T, nats",
        width=62,
        scale=alt.Scale(zero=False),
        ticks=None,
        has_zero_line=False,
    ),
    Panel(
        name="harm",
        title="harm: change at 8T, nats",
        width=88,
        scale=alt.Scale(type="symlog", constant=0.02, domain=[-0.02, 2]),
        ticks=(0, 0.05, 0.5),
        has_zero_line=True,
    ),
    Panel(
        name="use",
        title="use: found at 8T, %",
        width=68,
        scale=alt.Scale(domain=[0, 100]),
        ticks=None,
        has_zero_line=False,
    ),
    Panel(
        name="room",
        title="room at 8T, nats",
        width=68,
        scale=alt.Scale(domain=[-0.31, 0.25]),
        ticks=(-0.2, 0, 0.2),
        has_zero_line=True,
    ),
)


def study_marks() -> list[Mark]:
    """Return loss, harm and use of every encoding, from the least harm to the most."""
    rows = compare(["study-recall"])["rows"]
    marks = []
    for row in sorted(rows, key=lambda row: last_cell(row)["change"]):
        name, change = row["label"], last_cell(row)["change"]
        loss = cell_at(row, 1)["mean"]
        found = row["recall"]["beyond"][-1]
        low, high = harm_interval(last_cell(row))
        marks += [
            Mark("loss", name, loss, loss, loss),
            Mark("harm", name, change, low, high),
            Mark(
                "use",
                name,
                100 * found["accuracy"],
                *(100 * end for end in found["ci95"]),
                counts=bool(row["recall"]["learned"]),
            ),
        ]
    return marks


def harm_interval(cell: Json) -> tuple[float, float]:
    """Return the 95% interval over documents of one seed, else a standard deviation over seeds each way."""
    if cell["change_ci95"] is not None:
        low, high = cell["change_ci95"]
        return low, high
    spread = cell["change_spread"] or 0
    return cell["change"] - spread, cell["change"] + spread


def room_marks() -> list[Mark]:
    """Return what training at 8T gains, and what of it a model trained at T gains if it keeps its loss."""
    marks = []
    for row in compare(["study-room"])["rows"]:
        recovered = row["recovered"]
        if recovered is None:
            continue
        worth, (low, high) = recovered["worth"], recovered["worth_ci95"]
        marks.append(Mark("room", row["label"], worth, low, high))
        if verdict_word(last_cell(row)) == "same":
            gain = (recovered["share"] or 0.0) * worth
            marks.append(Mark("room", row["label"], gain, gain, gain, counts=False))
    return marks


def panel_chart(panel: Panel, rows: Sequence[str], with_names: bool) -> alt.LayerChart:
    """Return the chart of a panel: intervals as lines under dots."""
    y_axis = alt.Axis(grid=True, ticks=False, labels=with_names)
    y = alt.Y("row:N", sort=rows, scale=alt.Scale(domain=rows), title=None, axis=y_axis)
    fill = alt.when(alt.datum.counts).then(alt.value(COLOR)).otherwise(alt.value("white"))
    intervals = (
        alt.Chart().mark_rule(strokeWidth=1, stroke=PAPER.ink).encode(x=panel.channel("low"), x2="high", y=y)
    )
    dots = (
        alt.Chart()
        .mark_point(size=18, strokeWidth=0.8, opacity=1, filled=True, stroke=COLOR)
        .encode(x=panel.channel("x"), y=y, fill=fill)
    )
    layers = [intervals, dots]
    if panel.has_zero_line:
        zero = (
            alt.Chart(alt.Data(values=[{"x": 0}]))
            .mark_rule(stroke=PAPER.ink, strokeWidth=0.6, strokeDash=[2, 2], opacity=0.6)
            .encode(x=panel.channel("x"))
        )
        layers = [zero, *layers]
    return (
        alt.LayerChart(layer=layers)
        .transform_filter(alt.datum.panel == panel.name)
        .properties(width=panel.width, height=alt.Step(ROW_HEIGHT))
    )


def overview_png() -> bytes:
    """Return the picture."""
    marks = [*study_marks(), *room_marks()]
    rows = list(dict.fromkeys(mark.row for mark in marks))
    # The panels stand side by side, so that the first one's names serve all rows.
    first, *other_panels = PANELS
    panels = [panel_chart(first, rows, with_names=True)]
    panels += [panel_chart(panel, rows, with_names=False) for panel in other_panels]
    return png_of(alt.hconcat(*panels, data=data_of(marks), spacing=8))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="the PNG")
    parser.parse_args().out.write_bytes(overview_png())
