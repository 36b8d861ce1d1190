"""The loss by position: where the curves of a row break."""

from __future__ import annotations

from posenc.report.parts.base import CsvFields, ReportPart, RowColumn
from posenc.results.comparison import Comparison
from posenc.results.records import BREAK
from posenc.results.rows import Row


def _breaks_csv(comparison: Comparison, row: Row) -> CsvFields:
    if row.curve is None:
        return {}
    # By seed, as text: seeds break at different places, and a mean position would be that of no model.
    positions = ["none" if position is None else str(position) for position in row.curve.breaks_at]
    return {"breaks_at": " ".join(positions)}


ROW_COLUMNS = (
    RowColumn(
        csv=_breaks_csv,
        terms=(
            (
                "breaks at",
                f"the first position past T where the loss exceeds its level at T by {BREAK:g} nats "
                "(95% confidence)",
            ),
        ),
    ),
)

PART = ReportPart(
    row_columns=ROW_COLUMNS,
    order=50,
)
