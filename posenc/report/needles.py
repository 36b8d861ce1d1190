"""The table of the protocol `needle`: facts found, by depth and window, with an interval for each."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.report.tables import Table, table_of_rows
from posenc.report.texts import length_text, percent_interval, row_label
from posenc.results.comparison import Row
from posenc.results.needles import NeedleCell


def needle_tables(rows: Sequence[Row]) -> list[Table]:
    """Return a table for each row and number of keys, with a line a depth and a column a window."""
    tables = []
    for row in rows:
        cells = row.needle or ()
        for keys in dict.fromkeys(cell.keys for cell in cells):
            chosen = [cell for cell in cells if cell.keys == keys]
            tables.append(_table(chosen, needle_title(row_label(row), keys)))
    return tables


def needle_title(name: str, keys: int) -> str:
    """Return the title of a table."""
    among = "" if keys == 1 else f" among {keys}"
    return f"{name}: % of facts found{among}, by depth in the text and window [95% CI]"


def _table(cells: Sequence[NeedleCell], title: str) -> Table:
    multiples = sorted({cell.multiple for cell in cells})
    depths = sorted({cell.depth for cell in cells})
    text_of = {(cell.depth, cell.multiple): _cell_text(cell) for cell in cells}
    lines = []
    for depth in depths:
        texts = [text_of.get((depth, multiple), "-") for multiple in multiples]
        lines.append([f"{depth:g}", *texts])
    heads = ["depth", *(length_text(round(multiple, 4)) for multiple in multiples)]
    return table_of_rows(heads, lines, title)


def _cell_text(cell: NeedleCell) -> str:
    """Return the share and its 95% interval, `98 [91, 100]`."""
    return f"{100 * cell.share:.0f} {percent_interval(cell.ci95)}"
