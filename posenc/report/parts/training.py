"""The training of a row: its seeds, and whether it was trained too little to say anything."""

from __future__ import annotations

from posenc.report.parts.base import CsvFields, ReportPart, RowColumn
from posenc.results.comparison import Comparison
from posenc.results.rows import Row
from posenc.results.statistics.verdicts import REFERENCE_MARGIN


def _undertrained_csv(comparison: Comparison, row: Row) -> CsvFields:
    # A flag, by which lines can be filtered. The JSON has the sentence with the distance from the reference.
    return {"undertrained": row.undertrained is not None}


def _seeds_text(row: Row) -> str:
    return " ".join(str(seed) for seed in row.seeds)


ROW_COLUMNS = (
    RowColumn(
        csv=_undertrained_csv,
        terms=(
            (
                "undertrained",
                f"at T not {REFERENCE_MARGIN:g} bits/byte below a byte trigram of the training text or, on "
                "another text, the frequencies of its tokens: its change past T says nothing about the "
                "encoding",
            ),
        ),
    ),
    RowColumn(head=lambda comparison: "seeds", text=_seeds_text),
)

PART = ReportPart(
    row_columns=ROW_COLUMNS,
    order=40,
)
