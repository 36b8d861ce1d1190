"""Whole answers of tasks: how many seeds learned one, and what those get right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from posenc.core.quantities import length_text
from posenc.report.parts.base import CellColumn, ChartKind, CsvFields, ReportPart, RowColumn
from posenc.report.sentences.exact import answers_in_window, table_answers
from posenc.report.tables import Table, TableColumn, names_column, text_column
from posenc.report.texts import percent_interval, spread_text
from posenc.results.beside.base import LEARNED
from posenc.results.beside.exact import EXACT, ExactCell, RowExact, Spread
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison
from posenc.results.rows import Row

if TYPE_CHECKING:
    from posenc.report.charts.base import Chart, Panel, RowNames
    from posenc.report.charts.looks import Look

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
    from posenc.report.charts.exact import exact_chart  # here, since it imports altair

    return exact_chart(panels, names, look)


def _grid(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.charts.exact import tasks_grid

    return tasks_grid(panels, names, look)


def exact_table(comparison: Comparison, *, full: bool = False) -> Table:
    """Return a line for each row: the seeds that learned, and whole answers by window.

    With `full` there is also the interval of the probability to learn.
    """
    rows = comparison.rows
    columns = [
        names_column(rows),
        text_column("learned", [_learned_cell(EXACT.of(row), full=full) for row in rows]),
    ]
    for index, multiple in enumerate(table_answers(comparison).multiples):
        texts = [_whole_text(row, index) for row in rows]
        # Windows below T say only whether the task was learned, which has a column already.
        may_be_dropped = multiple < 1 and not full  # where the table is too wide
        rank = index if may_be_dropped else None
        columns.append(text_column(f"@{length_text(multiple)}", texts, drop_rank=rank))
    return Table(tuple(columns), "whole answers, %")


def tokens_table(comparison: Comparison) -> Table:
    """Return a line for each row: the right tokens by window, and those in answers that the model wrote."""
    # For --full alone: a share of 90% of right tokens may be not one right answer. In a table of its own,
    # since below the title `whole answers` its shares were read as such.
    columns = [names_column(comparison.rows)]
    columns += _token_columns(comparison, "tokens", lambda cell: cell.tokens)
    if any(_has_generated(row) for row in comparison.rows):
        columns += _token_columns(comparison, "own tokens", lambda cell: cell.generated_tokens)
    return Table(tuple(columns), "right tokens, %")


def _learned_cell(answers: RowExact | None, *, full: bool) -> str:
    if answers is None:
        return "-"
    text = f"{answers.learned}/{answers.seeds}"
    if not full:
        return text
    return f"{text} {percent_interval(answers.learned_ci95)}%"


def _whole_text(row: Row, index: int) -> str:
    """Return the whole answers of a row in a window, in brackets if no seed learned; `-` without a number."""
    answers = EXACT.of(row)
    cell = answers_in_window(row, index)
    if answers is None or cell is None:
        return "-"
    text = spread_text(cell.whole)
    return text if answers.learned else f"({text})"


def _token_columns(
    comparison: Comparison, name: str, spread_of: Callable[[ExactCell], Spread | None]
) -> list[TableColumn]:
    """Return a column of right tokens for each window."""
    columns = []
    for index, multiple in enumerate(table_answers(comparison).multiples):
        texts = []
        for row in comparison.rows:
            cell = answers_in_window(row, index)
            spread = None if cell is None else spread_of(cell)
            texts.append("-" if spread is None else spread_text(spread))
        columns.append(text_column(f"{name}@{length_text(multiple)}", texts))
    return columns


def _has_generated(row: Row) -> bool:
    answers = EXACT.of(row)
    if answers is None:
        return False
    return any(cell is not None and cell.generated_tokens is not None for cell in answers.cells)


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
