"""The ranks by window: losses against the lowest or the baseline, changes against the lowest."""

from __future__ import annotations

from posenc.report.cell_texts import versus_text
from posenc.report.parts.base import CellColumn, CsvFields, ReportPart, with_interval
from posenc.report.tables import BEST, TIED
from posenc.results.beside.recall_ranks import SAME_RECALL
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison
from posenc.results.rows import Row
from posenc.results.statistics.ranking import Versus
from posenc.results.statistics.verdicts import SAME_MARGIN


def _versus_head(comparison: Comparison) -> str:
    baseline = comparison.header.baseline
    return "above the lowest loss" if baseline is None else f"minus {baseline}"


def _versus(comparison: Comparison, cell: Cell) -> Versus | None:
    """Return the loss of a cell against the baseline, if there is one, else against the best row."""
    return cell.versus_best if comparison.header.baseline is None else cell.versus_baseline


def _versus_column_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    return versus_text(comparison.header.metric, _versus(comparison, cell))


def _versus_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    metric = comparison.header.metric
    # Both, also with a baseline: a file is read long after the command, and by other questions.
    best = _versus_fields("versus_best", metric, cell.versus_best)
    return best | _versus_fields("versus_baseline", metric, cell.versus_baseline)


def _rank_text(versus: Versus | None) -> str:
    return "" if versus is None else versus.word


def _change_versus(comparison: Comparison, cell: Cell) -> Versus | None:
    """Return the change of a cell against the lowest one; None in a table of differences to a baseline."""
    # Two ranks of one cell against two rows would be read as one. With a baseline the table answers for that
    # alone.
    return cell.change_versus_best if comparison.header.baseline is None else None


def _change_versus_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    return versus_text(comparison.header.metric, _change_versus(comparison, cell))


def _change_versus_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    return _versus_fields("change_versus_best", comparison.header.metric, cell.change_versus_best)


def _versus_fields(name: str, metric: str, versus: Versus | None) -> CsvFields:
    """Return the word, the difference with its interval, p, method, and what an unresolved one needs."""
    if versus is None:
        return {}
    difference = with_interval(f"{name}_{metric}", versus.difference, versus.ci95)
    return {
        name: versus.word,
        **difference,
        f"{name}_p": versus.p,
        f"{name}_method": versus.method,
        f"{name}_needs": versus.needs,
    }


CELL_COLUMNS = (
    CellColumn(
        head=_versus_head,
        text=_versus_column_text,
        csv=_versus_csv,
        terms=(
            (BEST, "the best of what its column shows: the lowest loss, the lowest change or difference"),
            (
                TIED,
                "tied with it: the whole 95% CI of the difference (corrected for the rows) lies within "
                f"{SAME_MARGIN:g} bits/byte, of recall within {SAME_RECALL:.0%}",
            ),
            (
                "no mark",
                f"above the best: by surely more than {SAME_MARGIN:g} bits/byte; or unresolved: the CI is "
                "too wide for any word, so there is no rank; or not comparable with it (undertrained, other "
                "targets). --full has the word of each",
            ),
        ),
    ),
    CellColumn(
        head=lambda comparison: "rank",
        text=lambda comparison, row, cell: _rank_text(_versus(comparison, cell)),
        is_words=True,
    ),
    CellColumn(
        head=lambda comparison: "above the lowest change",
        text=_change_versus_text,
        csv=_change_versus_csv,
    ),
    CellColumn(
        head=lambda comparison: "rank",
        text=lambda comparison, row, cell: _rank_text(_change_versus(comparison, cell)),
        is_words=True,
    ),
)

PART = ReportPart(
    cell_columns=CELL_COLUMNS,
    order=20,
)
