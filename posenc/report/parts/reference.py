"""The loss of the reference on the targets of the rows."""

from __future__ import annotations

from posenc.report.parts.base import CsvFields, ReportPart, RowColumn
from posenc.results.comparison import Comparison
from posenc.results.rows import Row


def _reference_csv(comparison: Comparison, row: Row) -> CsvFields:
    header = comparison.header
    if header.reference is None:
        return {}
    return {f"reference_{header.metric}": header.reference.mean}


# In CSV alone: it is one number for all rows, which a note of --full gives.
ROW_COLUMNS = (RowColumn(csv=_reference_csv),)

PART = ReportPart(
    row_columns=ROW_COLUMNS,
    order=70,
)
