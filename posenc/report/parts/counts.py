"""What the losses of a window are of: targets and documents, or why there is no number."""

from __future__ import annotations

from posenc.report.parts.base import CellColumn, CsvFields, ReportPart
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison
from posenc.results.rows import Row


def _counts_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    return {"targets": cell.targets, "documents": cell.documents, "note": cell.note}


# In CSV alone: the rows of a table mostly share their counts, which a note below it says once
# (sentences/notes.py).
CELL_COLUMNS = (CellColumn(csv=_counts_csv),)

PART = ReportPart(
    cell_columns=CELL_COLUMNS,
    order=30,
)
