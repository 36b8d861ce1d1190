"""Ranks of recall: in each window past T, the rows against the one whose seeds find the most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from posenc.results.beside.base import LEARNED
from posenc.results.beside.recall_cells import Needs, Place, Rank, RecallCell, RowRecall
from posenc.results.statistics.intervals import CONFIDENCE, Interval
from posenc.results.statistics.proportions import difference_of_shares

SAME_RECALL = (100 - LEARNED) / 100  # a row that finds at most this share less than the best may be tied


def rank_recall(rows: Sequence[RowRecall | None], are_complete: Sequence[bool]) -> list[RowRecall | None]:
    """Return the rows with their ranks, as far as they are complete.

    Rows are ranked by what their seeds that learned find. No row may win because its worse seeds are missing,
    so a row is not ranked if one of its seeds diverged or was not measured.
    """
    columns = max((len(row.beyond) for row in rows if row is not None), default=0)
    ranked_columns = []
    for column in range(columns):
        rankable_cells = _rankable_cells(rows, are_complete, column)
        ranked_columns.append(with_ranks(rankable_cells))
    ranked = []
    for index, row in enumerate(rows):
        ranked.append(_with_cells(row, [column.get(index) for column in ranked_columns]))
    return ranked


def _rankable_cells(
    rows: Sequence[RowRecall | None], are_complete: Sequence[bool], column: int
) -> dict[int, RecallCell]:
    """Return the cells of a column that may be ranked, by the index of their row."""
    cells = {}
    for index, row in enumerate(rows):
        if row is None or row.learning is None or not are_complete[index]:
            continue
        cell = row.beyond[column]
        learned = row.learning.learned
        # A row must not win because a seed that learned was not measured in this window.
        if cell is not None and learned > 0 and cell.seeds == learned:
            cells[index] = cell
    return cells


def with_ranks(cells: dict[int, RecallCell]) -> dict[int, RecallCell]:
    """Return the cells of a column with their ranks; a single cell has none.

    A cell of one seed is ranked only if no cell has several: its interval says nothing of other seeds. The
    interval of a difference is Newcombe's (1998), with its confidence corrected for the rows (Bonferroni).
    """
    most_seeds = max((cell.seeds for cell in cells.values()), default=0)
    if most_seeds > 1:
        cells = {index: cell for index, cell in cells.items() if cell.seeds > 1}
    if len(cells) < 2:
        return cells
    best = max(cells, key=lambda index: cells[index].accuracy)
    # Each row is compared with the best one alone, so there are R - 1 comparisons and not R (R - 1) / 2.
    confidence = 1 - (1 - CONFIDENCE) / (len(cells) - 1)
    ranked = {}
    for index, cell in cells.items():
        rank: Rank = "best" if index == best else _rank(cell, cells[best], confidence)
        needs = _needs(cell, cells[best]) if rank == "unresolved" else None
        ranked[index] = replace(cell, rank=rank, needs=needs)
    return ranked


def _rank(cell: RecallCell, best: RecallCell, confidence: float) -> Rank:
    """Return the rank of a cell that is not the best one."""
    _, high = _difference(cell, best, confidence)
    # Equivalence comes first: a difference that is surely within 10 points is no reason to call a row worse,
    # even if it is surely not 0.
    if high <= SAME_RECALL:
        return "tied"
    return "below" if is_below(cell, best, confidence) else "unresolved"


def is_below(cell: RecallCell, best: RecallCell, confidence: float) -> bool:
    """Tell whether the seeds of a cell find clearly less than those of the best one."""
    low, _ = _difference(cell, best, confidence)
    return low > 0


def _difference(cell: RecallCell, best: RecallCell, confidence: float) -> Interval:
    """Return the interval of how much more the seeds of the best cell find."""
    return difference_of_shares(
        best.accuracy, best.interval(confidence), cell.accuracy, cell.interval(confidence)
    )


def _needs(cell: RecallCell, best: RecallCell) -> Needs:
    """Return which makes the interval too wide, seeds or windows. It is seeds if a row has a single one."""
    # More windows would narrow the interval of this one model, and still say nothing about other seeds.
    if min(cell.seeds, best.seeds) == 1:
        return "seeds"
    # Without a spread the interval is over the windows alone.
    over_windows = [replace(compared, spread=None).interval(CONFIDENCE) for compared in (cell, best)]
    over_both = [compared.ci95 for compared in (cell, best)]
    # The squared widths of both sources add up, so a source with more than half of the sum is the larger one.
    return "windows" if 2 * _sum_of_squares(over_windows) > _sum_of_squares(over_both) else "seeds"


def _sum_of_squares(intervals: Sequence[Interval]) -> float:
    return sum((high - low) ** 2 for low, high in intervals)


def _with_cells(row: RowRecall | None, ranked: Sequence[RecallCell | None]) -> RowRecall | None:
    """Return a row with ranked cells in place of its cells without ranks.

    `ranked` has a cell for each column; None if the row has no rank there.
    """
    if row is None:
        return None
    at_place: dict[Place, RecallCell] = {cell.place: cell for cell in ranked if cell is not None}

    def with_rank(cell: RecallCell) -> RecallCell:
        return at_place.get(cell.place, cell)

    return replace(
        row,
        beyond=tuple(None if cell is None else with_rank(cell) for cell in row.beyond),
        grid=tuple(with_rank(cell) for cell in row.grid),  # the columns show cells of the grid
    )
