"""Recall: planted values found, by window and distance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from posenc.core.quantities import length_text
from posenc.report.cell_texts import horizon_text
from posenc.report.parts.base import ChartKind, Line, ReportPart, RowColumn, with_interval
from posenc.report.sentences.recall import has_several_recall_seeds
from posenc.report.sentences.shared import is_recall_only
from posenc.report.tables import (
    MARKS,
    RECALL_RANK,
    Table,
    TableCell,
    TableColumn,
    TableKind,
    names_column,
    text_column,
)
from posenc.report.texts import learning_text, percent_interval, percent_text, share_with_interval
from posenc.results.beside.base import LEARNED
from posenc.results.beside.recall import (
    HORIZON_SHARE,
    RECALL,
    TableRecall,
    learning_of,
)
from posenc.results.beside.recall_cells import RecallCell, RowRecall
from posenc.results.comparison import Comparison
from posenc.results.rows import Row

if TYPE_CHECKING:
    from posenc.report.charts.base import Chart, Panel, RowNames
    from posenc.report.charts.looks import Look

CHARTS = {
    "recall": "share of planted values found, by window and distance",
    "use": "harm and use: recall against the change of the loss, in the longest window",
}
NO_RECALL = (
    "no recall beside these losses: posenc train experiment=recall; of other plants: --protocol recall"
)


def _lines(row: Row) -> Iterator[Line]:
    """Yield a line of CSV for each window, distance and number of pairs."""
    recall = RECALL.of(row)
    if recall is not None:
        # Lines of their own and not columns of a window's line: a window has several distances and numbers of
        # pairs.
        for cell in recall.grid:
            yield _recall_fields(recall, cell)


def _recall_fields(recall: RowRecall, cell: RecallCell) -> Line:
    learning = recall.learning
    return {
        "protocol": RECALL.protocol,
        "target_set": None,  # windows are counted instead
        "multiple": cell.place.multiple,
        "window": cell.place.window,
        "seeds": cell.seeds,
        "distance": cell.place.distance,
        "pairs": cell.place.pairs,
        "windows": cell.windows,
        "recall": cell.accuracy,
        "recall_sd": cell.spread,
        **with_interval("recall", cell.accuracy, cell.ci95),
        "recall_seeds": None if learning is None else learning.seeds,
        "recall_seeds_learned": None if learning is None else learning.learned,
    }


def _grid(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.charts.recall_grid import recall_grid  # here, since it imports altair

    return recall_grid(panels, names, look)


def _use_chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    from posenc.report.charts.use import use_chart

    return use_chart(panels, names, look)


def recall_table(comparison: Comparison, table_recall: TableRecall) -> Table:
    """Return the recall of each row with its interval, and every rank."""
    columns = recall_columns_of(comparison, table_recall, TableKind.FULL)
    return Table((names_column(comparison.rows), *columns), "recall, % with 95% CI")


def recall_columns_of(
    comparison: Comparison, table_recall: TableRecall, kind: TableKind
) -> list[TableColumn]:
    """Return recall within T, and in each longer window at its farthest distance, in per cent."""
    columns = _learning_columns(comparison, kind)
    lengths = [length_text(multiple) for multiple in table_recall.multiples]
    heads = ["recall@T", *(f"@{length}" for length in lengths)]
    for index, head in enumerate(heads):
        is_last = index == len(heads) - 1
        # One screen has no room for the ranks of all windows: only those of the longest have marks.
        cells = tuple(_recall_cell(row, index, kind, has_ranks=is_last) for row in comparison.rows)
        # Beside the column of the seeds that found enough within T, what they find there says little.
        says_little = index == 0 and has_several_recall_seeds(comparison)
        is_needed = is_last or (index == 0 and not says_little)
        always_stays = is_needed or kind is TableKind.FULL or is_recall_only(comparison)
        # Between T and the longest window the longest go first, as with the losses (tables.py).
        rank = None if always_stays else RECALL_RANK - index
        columns.append(TableColumn(head, cells, drop_rank=rank))
    return columns


def _learning_columns(comparison: Comparison, kind: TableKind) -> list[TableColumn]:
    """Return how many seeds learned to recall; no column where every row has a single seed."""
    if not has_several_recall_seeds(comparison):
        # One seed either learned or did not, which the brackets around its recall already say.
        return []
    texts = [_learning_cell(row, kind) for row in comparison.rows]
    return [text_column("learned", texts)]


def _learning_cell(row: Row, kind: TableKind) -> str:
    learning = learning_of(row)
    if learning is None:
        return "-"
    text = learning_text(learning)
    return f"{text} {percent_interval(learning.ci95)}" if kind is TableKind.FULL else text


def _recall_cell(row: Row, index: int, kind: TableKind, *, has_ranks: bool) -> TableCell:
    """Return the recall of a row in a window (index 0 is T); brackets say that no seed learned it.

    A full table has ranks as words, the others as marks.
    """
    recall = RECALL.of(row)
    cell = None if recall is None else recall.cells[index]
    if recall is None or cell is None:
        return TableCell("-")
    text = _recall_text(cell, kind)
    if kind is TableKind.FULL:
        return TableCell(f"{text} {cell.rank}" if cell.rank else text)
    # `is False`, since None means that nobody measured recall within T, so that the row may have learned.
    if recall.learned is False:
        text = f"({text})"
    mark = MARKS.get(cell.rank or "", "") if has_ranks else ""
    return TableCell(text, mark)


def _recall_text(cell: RecallCell, kind: TableKind) -> str:
    number = percent_text(cell).removesuffix("%")
    if kind is TableKind.FULL:
        return f"{number} {percent_interval(cell.ci95)}"
    if kind is TableKind.PAPER:
        return share_with_interval(cell)
    return number


ROW_COLUMNS = (
    RowColumn(
        head=lambda comparison: "recall horizon",
        text=lambda row: horizon_text(RECALL.of(row)),
        terms=(
            (
                "learned",
                f"how many seeds learned to recall: they find {LEARNED:g}% of the planted values within T "
                "(--recall-level). Its CI is that of a binomial: 3 of 3 mean a probability above 37%",
            ),
            (
                "recall@T",
                "share of the planted values found in windows of T by the seeds that learned, mean over "
                "the distances within T; @8x: at the farthest distance in windows of 8T. A guess finds one "
                "in data.plant.alphabet. Each seed draws its windows. The 95% CI is over these seeds; with "
                "one seed over its windows (Wilson's)",
            ),
            (
                "did not learn",
                "to recall: no seed did. The number in brackets is the mean of all seeds and has no rank: "
                "far text may be unused whatever the loss says",
            ),
            (
                "recall horizon",
                f"the largest distance, in the longest window, with at least {HORIZON_SHARE:.0%} of the "
                "recall within T",
            ),
        ),
    ),
)

PART = ReportPart(
    row_columns=ROW_COLUMNS,
    lines=_lines,
    charts=(
        ChartKind(name="recall", make=_grid, problem=NO_RECALL, protocol=RECALL.protocol),
        ChartKind(name="use", make=_use_chart, problem=NO_RECALL, page="losses"),
    ),
    protocol=RECALL.protocol,
    order=80,
)
