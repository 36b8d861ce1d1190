"""Say what would settle a comparison of rows that is unresolved: more seeds, documents or windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posenc.core.errors import plural
from posenc.report.texts import row_label
from posenc.results.beside.recall_cells import RecallCell
from posenc.results.cells import Cell
from posenc.results.rows import Row
from posenc.results.statistics.ranking import Versus

# A row is advised to have at least so many seeds; a row that has them is advised to have one more.
ENOUGH_SEEDS = 3
MORE_WINDOWS = 4  # times as many windows of recall: they halve an interval


@dataclass(frozen=True)
class Rival:
    """A row of an unresolved comparison, with what it was measured on."""

    row: Row
    seeds: int
    sample: str  # what its interval is over besides seeds: `160 documents`
    larger_sample: str  # how to get more of these
    needs: str | None  # `seeds`, `documents` or `windows`; None for the row that the others are compared with

    @classmethod
    def of_losses(cls, row: Row, cell: Cell, versus: Versus | None) -> Rival:
        """Return a rival in its loss."""
        sample = "few documents" if cell.documents is None else plural(cell.documents, "document")
        needs = None if versus is None else versus.needs
        return cls(row, cell.seeds, sample, "measure a larger text", needs)

    @classmethod
    def of_recall(cls, row: Row, cell: RecallCell) -> Rival:
        """Return a rival in its recall."""
        larger_sample = f"eval.recall.windows={MORE_WINDOWS * cell.windows}"
        return cls(row, cell.seeds, plural(cell.windows, "window"), larger_sample, cell.needs)


def what_settles(rivals: Sequence[Rival]) -> str:
    """Return what would settle a comparison: `2 seeds: add seed=2`, `160 documents: measure a larger text`.

    The advice is for the rival with the fewest seeds. If others have more, it is named: `fox has 1 seed: add
    seed=1,2`. Empty without rivals.
    """
    if not rivals:
        return ""
    # A seed more helps most where there are fewest: the wider of the two sides decides how wide a difference
    # is.
    fewest = min(rivals, key=lambda rival: rival.seeds)
    if all(rival.needs != "seeds" for rival in rivals):
        return f"{fewest.sample}: {fewest.larger_sample}"
    n_new = max(ENOUGH_SEEDS, fewest.seeds + 1) - fewest.seeds
    # The row has used at most len(seeds) of these numbers, so that at least `n_new` are left.
    unused = [seed for seed in range(len(fewest.row.seeds) + n_new) if seed not in fewest.row.seeds]
    count = plural(fewest.seeds, "seed")
    if any(rival.seeds != fewest.seeds for rival in rivals):
        count = f"{row_label(fewest.row)} has {count}"
    return f"{count}: add seed={','.join(map(str, unused[:n_new]))}"
