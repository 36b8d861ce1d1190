"""Facts found by the protocol `needle`: tables and a heat map by window and depth in the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posenc.report.parts.base import ChartKind, ReportPart
from posenc.report.share_tables import table_of_shares
from posenc.report.tables import Table
from posenc.report.texts import row_label
from posenc.results.beside.needle import NEEDLE
from posenc.results.rows import Row

if TYPE_CHECKING:
    from posenc.report.charts.base import Chart, Panel, RowNames
    from posenc.report.charts.looks import Look

CHARTS = {
    "needle": "share of facts found, by window and depth in the text",
}
NO_NEEDLE = "no run was asked for facts: posenc eval run=DIR 'eval.protocols=[needle]'"


def _tables(rows: Sequence[Row]) -> list[Table]:
    """Return a table for each row and number of keys: a column for each window, a line for each depth."""
    tables = []
    for row in rows:
        cells = NEEDLE.of(row) or ()
        # A fact among several is another question than a single one, so that each number of keys has a table.
        for keys in dict.fromkeys(cell.keys for cell in cells):
            of_keys = [cell for cell in cells if cell.keys == keys]
            heads = [f"{cell.depth:g}" for cell in of_keys]
            among = "" if keys == 1 else f" among {keys}"
            title = f"{row_label(row)}: % of facts found{among}, by depth in the text and window [95% CI]"
            tables.append(table_of_shares("depth", heads, [cell.found for cell in of_keys], title))
    return tables


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
