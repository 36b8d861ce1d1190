"""Say what the marks in a table mean."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.report.cell_texts import rank_of_number
from posenc.report.sentences.recall import farthest_recalls, rows_of_unresolved_recall
from posenc.report.sentences.shared import (
    OF_SEVERAL_SEEDS,
    is_below_best,
    is_recall_only,
    length_name,
    lengths_by_names,
)
from posenc.report.tables import BEST, TIED
from posenc.report.texts import names_text
from posenc.results.beside.recall import RECALL
from posenc.results.beside.recall_ranks import SAME_RECALL
from posenc.results.comparison import Comparison
from posenc.results.statistics.verdicts import SAME_MARGIN


def marks_note(comparison: Comparison, indices: Sequence[int]) -> str:
    """Return the note on the marks of the table of one screen; empty if nothing is ranked.

    `indices` are those of the columns in the table.
    """
    quantity = _quantity_of_marks(comparison, indices)
    if not quantity:
        return ""
    # Only the reasons that this table has: a legend of marks that do not occur would make a reader look for
    # them.
    reasons = ["behind"]
    if _unresolved_names(comparison, indices) or rows_of_unresolved_recall(comparison):
        reasons.append("unresolved")
    if any(row.undertrained for row in comparison.rows):
        reasons.append("undertrained")
    return f"{BEST} {quantity}; {TIED} tied; no mark: {' or '.join(reasons)}"


def paper_marks_note(comparison: Comparison, indices: Sequence[int]) -> str:
    """Return the note on bold numbers and the tilde in the table of a paper; empty if nothing is ranked.

    It names the rows that are unresolved, which have no mark.
    """
    quantity = _quantity_of_marks(comparison, indices)
    if not quantity:
        return ""
    margins = []
    if not is_recall_only(comparison):
        margins.append(f"{SAME_MARGIN:g} bits/byte")
    if RECALL.of_table(comparison) is not None:
        margins.append(f"{100 * SAME_RECALL:.0f} points of recall")
    tied = f"tied with it, the whole 95% CI of the difference within {' or '.join(margins)}"
    unresolved = _unresolved_names(comparison, indices)
    unresolved_recall = rows_of_unresolved_recall(comparison)
    if unresolved_recall:
        unresolved.append(f"{names_text(unresolved_recall)} in recall")
    reasons = ["behind"]
    if unresolved:
        reasons.append(f"unresolved ({', '.join(unresolved)})")
    if any(row.undertrained for row in comparison.rows):
        reasons.append("undertrained")
    return f"bold: {quantity}; tilde: {tied}; no mark: {' or '.join(reasons)}"


def _quantity_of_marks(comparison: Comparison, indices: Sequence[int]) -> str:
    """Return what the best of a column is: `lowest loss at T, lowest change past T, highest recall`."""
    multiples = set()
    has_lower_row = False
    for row in comparison.rows:
        for index in indices:
            rank = rank_of_number(comparison, row.cells[index])
            if rank is not None:
                multiples.add(comparison.columns[index].multiple)
                has_lower_row = has_lower_row or is_below_best(rank)
    quantities = []
    if comparison.header.baseline is not None and multiples:
        quantities.append("lowest loss")
    else:
        if 1 in multiples:
            quantities.append("lowest loss at T")
        if multiples - {1}:
            quantities.append("lowest change elsewhere" if min(multiples) < 1 else "lowest change past T")
    if has_lower_row:
        quantities[-1] += f" ({OF_SEVERAL_SEEDS})"
    if any(cell.rank is not None for _, cell in farthest_recalls(comparison)):
        quantities.append("highest recall")
    return ", ".join(quantities)


def _unresolved_names(comparison: Comparison, indices: Sequence[int]) -> list[str]:
    """Return `learned at T`, `3 rows at 4x and 8x`: what is unresolved of the numbers in the table."""
    unresolved_at = []  # the names of rows, with a length
    for index in indices:
        unresolved = []
        for row in comparison.rows:
            rank = rank_of_number(comparison, row.cells[index])
            if rank is not None and rank.word == "unresolved":
                unresolved.append(row)
        if unresolved:
            unresolved_at.append((names_text(unresolved), length_name(comparison, index)))
    return [f"{names} at {lengths}" for names, lengths in lengths_by_names(unresolved_at).items()]
