"""Facts found by the protocol `needle`: tables and a heat map by window and depth in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posenc.report.parts.base import ChartKind, ReportPart
from posenc.report.share_tables import table_of_shares
from posenc.report.tables import Table
from posenc.report.texts import row_label
from posenc.results.beside.needle import NEEDLE, NeedleCell
from posenc.results.rows import Row

if TYPE_CHECKING:
    from posenc.report.charts.base import Chart, Panel, RowNames
    from posenc.report.charts.looks import Look

CHARTS = {
    "needle": "share of facts found, by window and depth in the text",
}
NO_NEEDLE = "no run was asked for facts: posenc eval run=DIR 'eval.protocols=[needle]'"


def _tables(rows: Sequence[Row]) -> list[Table]:
    """Return the shares of facts found, a column for each window.

    If several rows were asked a single question, they are the lines of one table. Otherwise each row has a
    table for each number of keys, with a line for each depth.
    """
    cells_of_rows = [(row_label(row), NEEDLE.of(row) or ()) for row in rows]
    asked_rows = [label for label, cells in cells_of_rows if cells]
    questions = {(cell.depth, cell.keys) for _, cells in cells_of_rows for cell in cells}
    if len(asked_rows) > 1 and len(questions) == 1:
        return [_table_of_rows(cells_of_rows)]
    tables = []
    for label, cells in cells_of_rows:
        # A fact among several is another question than a single one, so that each number of keys has a table.
        for keys in dict.fromkeys(cell.keys for cell in cells):
            of_keys = [cell for cell in cells if cell.keys == keys]
            heads = [f"{cell.depth:g}" for cell in of_keys]
            title = f"{label}: % of facts found{_among(keys)}, by depth in the text and window [95% CI]"
            tables.append(table_of_shares("depth", heads, [cell.found for cell in of_keys], title))
    return tables


def _table_of_rows(cells_of_rows: Sequence[tuple[str, Sequence[NeedleCell]]]) -> Table:
    """Return one table of rows that were asked for facts at a single depth, with one number of keys."""
    labels: list[str] = []
    cells: list[NeedleCell] = []
    for label, cells_of_row in cells_of_rows:
        labels += [label] * len(cells_of_row)
        cells += cells_of_row
    question = cells[0]
    title = f"% of facts found{_among(question.keys)} at depth {question.depth:g}, by window [95% CI]"
    return table_of_shares("encoding", labels, [cell.found for cell in cells], title)


def _among(keys: int) -> str:
    """Return ` among 4`: how many sentences of its kind a fact stands among; empty for a single one."""
    return "" if keys == 1 else f" among {keys}"


def _grid(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.charts.needle import needle_grid  # here, since it imports altair

    return needle_grid(panels, names, look)


PART = ReportPart(
    tables=_tables,
    charts=(
        ChartKind(name="needle", make=_grid, problem=NO_NEEDLE, page="losses", protocol=NEEDLE.protocol),
    ),
    protocol=NEEDLE.protocol,
    order=100,
)
