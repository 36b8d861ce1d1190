"""Whole answers of tasks: how many seeds learned one, and what those get right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posenc.report.parts.base import CellColumn, ChartKind, CsvFields, ReportPart, RowColumn
from posenc.results.beside.base import LEARNED
from posenc.results.beside.exact import EXACT
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison, Row

if TYPE_CHECKING:
    from posenc.report.chart import Chart, Panel, RowNames
    from posenc.report.looks import Look

CHARTS = {
    "exact": "answers of a task that are wholly right, by window",
    "tasks": "answers wholly right in the longest window, by encoding and task",
}
NO_TASK = "no run learned a task: posenc train data=task data.task=copy"


def _whole_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    """Return the whole answers in a window: of the seeds that learned; if none learned, of all."""
    answers = EXACT.of(row)
    if answers is None:
        return {}
    # A column of CSV is given a cell and not the index of its window, so that the answers are sought by the
    # multiple.
    for answer in answers.cells:
        if answer is not None and answer.multiple == cell.multiple:
            return {
                "whole_median": answer.whole.median,
                "whole_low": answer.whole.low,
                "whole_high": answer.whole.high,
                "tokens_median": answer.tokens.median,
            }
    return {}


def _exact_csv(comparison: Comparison, row: Row) -> CsvFields:
    answers = EXACT.of(row)
    if answers is None:
        return {}
    return {"learned": answers.learned, "learned_of": answers.seeds}


def _chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.exact_charts import exact_chart  # here, since it imports altair

    return exact_chart(panels, names, look)


def _grid(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.exact_charts import tasks_grid

    return tasks_grid(panels, names, look)


CELL_COLUMNS = (CellColumn(csv=_whole_csv),)

ROW_COLUMNS = (
    RowColumn(
        csv=_exact_csv,
        terms=(
            (
                "learned",
                f"of a task: seeds with at least {LEARNED:g}% of the answers wholly right in windows of T; "
                "a row without any is in brackets",
            ),
            (
                "@8x",
                "of a task: the share of answers that are wholly right in windows of 8T. It is the median of "
                "the seeds that learned, with their range; from five seeds on with the quartiles",
            ),
        ),
    ),
)

PART = ReportPart(
    cell_columns=CELL_COLUMNS,
    row_columns=ROW_COLUMNS,
    charts=(
        ChartKind(name="exact", make=_chart, problem=NO_TASK, page="tasks", protocol=EXACT.protocol),
        ChartKind(name="tasks", make=_grid, problem=NO_TASK, needs_full_width=True),
    ),
    protocol=EXACT.protocol,
    order=90,
)
