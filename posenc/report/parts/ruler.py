"""Values found by the protocol `ruler`: a table by task of RULER and window."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.report.parts.base import ReportPart
from posenc.report.share_tables import table_of_shares
from posenc.report.tables import Table
from posenc.report.texts import row_label
from posenc.results.beside.ruler import RULER
from posenc.results.rows import Row


def _tables(rows: Sequence[Row]) -> list[Table]:
    """Return a table for each row: a column for each window, a line for each task of RULER."""
    tables = []
    for row in rows:
        cells = RULER.of(row) or ()
        if cells:
            # A table for each row, since tasks and windows already take both sides of one.
            title = f"{row_label(row)}: % of values found in tasks of RULER, by window [95% CI]"
            tasks = [cell.task for cell in cells]
            tables.append(table_of_shares("task", tasks, [cell.found for cell in cells], title))
    return tables


PART = ReportPart(tables=_tables, protocol=RULER.protocol, order=110)
