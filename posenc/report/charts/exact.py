"""Pictures of whole answers: by length, a panel for each task; and a grid of tasks and encodings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from posenc.core.quantities import length_text
from posenc.report.cell_texts import missing_reason
from posenc.report.charts.base import Chart, Panel, RowChannels, RowNames, short_number, source_sentence
from posenc.report.charts.grids import CELL_HEIGHT, SHADE_MARGIN, Content, Square, grid_layers
from posenc.report.charts.looks import Look, data_of
from posenc.report.texts import learned_of_seeds, spread_text, whole_percent
from posenc.results.beside.exact import EXACT, RowExact
from posenc.results.rows import Row

HEIGHT = 150  # points, of a panel in a file
NOT_LEARNED = "–"
LONGEST_TASK_NAME = 18  # characters, in the head of a column


@dataclass(frozen=True)
class ExactPoint:
    """The whole answers of a row in windows of one length, in per cent."""

    panel: str
    row: str
    x: float  # multiple of T
    y: float  # median of the seeds that learned
    low: float
    high: float
    text: str  # shown while the point is pointed at


def exact_chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    """Return lines of whole answers against the window, of the rows that learned, with their range."""
    points = [point for panel in panels for point in _points(panel, names)]
    if not points:
        return None
    rows = list(dict.fromkeys(point.row for point in points))
    channels = RowChannels(rows, names, look)
    multiples = sorted({point.x for point in points})
    x_axis = alt.Axis(title="window / T", values=multiples, format="~g", grid=False)
    x = alt.X("x:Q", scale=alt.Scale(type="log", base=2, nice=False), axis=x_axis)
    # The whole scale and not the range of the data, so that two pictures can be held side by side.
    y_scale = alt.Scale(domain=[0, 100], nice=False)
    y = alt.Y("y:Q", scale=y_scale, axis=alt.Axis(title="whole answers (%)", values=[0, 25, 50, 75, 100]))
    ranges = alt.Chart().mark_rule(opacity=0.5).encode(x=x, y=alt.Y("low:Q", scale=y_scale), y2="high")
    lines = alt.Chart().mark_line(strokeWidth=1.2).encode(x=x, y=y, color=channels.color)
    markers = channels.encode_markers(alt.Chart().mark_point(filled=True), x, y, look.marker_area)
    layers = [ranges.encode(color=channels.color), lines, channels.pointable(channels.choosable(markers))]
    return Chart(
        title="Whole answers",
        layers=alt.LayerChart(layer=layers, data=data_of(points)),
        panels=list(dict.fromkeys(point.panel for point in points)),
        rows=rows,
        caption=f"{source_sentence(panels)} Answers wholly right, of the seeds that learned: median, range.",
        height=HEIGHT,
    )


def tasks_grid(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    """Return cells coloured by the whole answers in the longest window, by encoding and task."""
    squares = [square for panel in panels for square in _squares(panel, names)]
    if not squares:
        return None
    x_axis = alt.Axis(title=None, orient="top", labelAngle=-30, ticks=False, domain=False)
    y_axis = alt.Axis(title=None, labelColor=look.ink, labelLimit=220, ticks=False, domain=False)
    meaning = (
        "Per cent of answers wholly right in the longest window: median of the seeds that learned the task "
        f"within T; {NOT_LEARNED}: no seed learned it."
    )
    return Chart(
        title="Tasks",
        layers=grid_layers(
            squares,
            x=alt.X("column:O", sort=None, axis=x_axis),
            y=alt.Y("row:O", sort=None, axis=y_axis),
            colors=alt.Scale(scheme="blues", domain=[0, SHADE_MARGIN]),
        ),
        # One panel for all comparisons: each of them is a task, and so a column.
        panels=[""],
        rows=[],
        caption=f"{meaning} {source_sentence(panels)}",
        height=alt.Step(CELL_HEIGHT),
    )


def _points(panel: Panel, names: RowNames) -> list[ExactPoint]:
    points = []
    for row in panel.comparison.rows:
        answers = EXACT.of(row)
        # A row that did not learn within T would be a line along the bottom, as if length had broken it.
        if answers is None or not answers.learned:
            continue
        for cell in answers.cells:
            if cell is None:
                continue
            name = names.name(row)
            text = f"{name}\n{length_text(cell.multiple)}: {spread_text(cell.whole)}%"
            points.append(
                ExactPoint(
                    panel=panel.title,
                    row=name,
                    x=cell.multiple,
                    y=short_number(100 * cell.whole.median),
                    low=short_number(100 * cell.whole.low),
                    high=short_number(100 * cell.whole.high),
                    text=f"{text}\n{learned_of_seeds(answers)} learned",
                )
            )
    return points


def _squares(panel: Panel, names: RowNames) -> list[Square]:
    # The corpus of a run of tasks has the name of its task.
    task = panel.comparison.header.corpus or panel.title
    squares = []
    for row in panel.comparison.rows:
        answers = EXACT.of(row)
        if answers is None or not answers.cells:
            continue
        content = _content(row, answers)
        squares.append(
            Square(
                panel="",
                row=names.name(row),
                column=task[:LONGEST_TASK_NAME],
                meaning=content.meaning,
                text=content.text,
                shade=content.shade,
            )
        )
    return squares


def _content(row: Row, answers: RowExact) -> Content:
    """Return the whole answers of a row in the longest window, or why there is no number."""
    # A task that no seed learned within T says nothing about length, so that the cell has no number.
    if not answers.learned:
        return Content("nothing", NOT_LEARNED)
    longest = answers.cells[-1]
    if longest is None:
        return Content("nothing", missing_reason(row.cells[-1]))
    median = longest.whole.median
    return Content("share", whole_percent(median), short_number(median))
