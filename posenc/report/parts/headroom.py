"""What far text is worth to a model that was trained on long text, and the share that a row recovers."""

from __future__ import annotations

from posenc.core.quantities import length_text
from posenc.report.cell_texts import half_width, recovered_text, recovered_with_interval
from posenc.report.parts.base import CsvFields, ReportPart, RowColumn, with_interval
from posenc.report.texts import token_noun
from posenc.results.comparison import Comparison
from posenc.results.numbers import printed_change
from posenc.results.rows import Row
from posenc.results.statistics.intervals import Interval


def _worth_text(row: Row) -> str:
    recovered = row.recovered
    return "" if recovered is None else _nats_text(recovered.worth, recovered.worth_ci95)


def _long_difference_text(row: Row) -> str:
    recovered = row.recovered
    return "" if recovered is None else _nats_text(recovered.difference, recovered.difference_ci95)


def _nats_text(change: float | None, interval: Interval | None) -> str:
    """Return a change with half its interval, `+0.061±0.012`; empty without a number."""
    if change is None:
        return ""
    return printed_change(change, "nats") + half_width("nats", None, interval)


def _recovered_csv(comparison: Comparison, row: Row) -> CsvFields:
    """Return all numbers of a row that need a long-trained model."""
    recovered = row.recovered
    if recovered is None:
        return {}
    return {
        **with_interval("worth_nats", recovered.worth, recovered.worth_ci95),
        **with_interval("minus_long_nats", recovered.difference, recovered.difference_ci95),
        **with_interval("recovered", recovered.share, recovered.ci95),
    }


def _recovered_column_text(row: Row) -> str:
    if row.recovered is None:
        return ""
    share = row.recovered.note or recovered_with_interval(row.recovered)
    # With its length, since rows may be held against models that were trained at different lengths.
    return f"{share} at {length_text(row.recovered.multiple)}"


ROW_COLUMNS = (
    RowColumn(
        head=lambda comparison: f"far text worth, nats/{token_noun(comparison.header)}",
        text=_worth_text,
        csv=_recovered_csv,
        terms=(
            (
                "worth",
                "of far text: what a model trained at 8T gains from 8T of text over T, on the same targets",
            ),
        ),
    ),
    RowColumn(
        head=lambda comparison: "minus the long-trained at T",
        text=_long_difference_text,
    ),
    RowColumn(
        head=lambda comparison: "recovered",
        text=_recovered_column_text,
        short=lambda row: recovered_text(row.recovered),
        paper=lambda row: recovered_with_interval(row.recovered),
        terms=(
            (
                "recovered",
                "the share of the far text's worth that the row, trained at T, gains at 8T: 0% is cropping, "
                "100% as much as training long gains; blank: far text is worth nothing (95% CI)",
            ),
        ),
    ),
)

PART = ReportPart(
    row_columns=ROW_COLUMNS,
    order=60,
)
