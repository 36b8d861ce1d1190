"""Say which columns and cells of a comparison its sentences speak of."""

from __future__ import annotations

from collections.abc import Iterable

from posenc.core.quantities import length_text
from posenc.results.beside.recall import RECALL
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison
from posenc.results.headers import Header
from posenc.results.records import UNIGRAM
from posenc.results.statistics.ranking import Versus

OF_SEVERAL_SEEDS = "of rows with several seeds"  # what is the lowest where a row of one seed is lower
NOTHING_BEYOND_SHOWN = "No length beyond T is shown."  # where a user chose other columns


def shown_columns(comparison: Comparison) -> list[int]:
    """Return the indices of the columns that tables show."""
    return [index for index, column in enumerate(comparison.columns) if column.shown]


def is_recall_only(comparison: Comparison) -> bool:
    """Return whether the table has recall and no losses."""
    # Records with a note alone, such as `n/a`, make a table of this protocol without any recall.
    return comparison.header.protocol == RECALL.protocol and RECALL.of_table(comparison) is not None


def all_cells(comparison: Comparison) -> list[Cell]:
    """Return the cells of all rows."""
    return [cell for row in comparison.rows for cell in row.cells]


def length_name(comparison: Comparison, index: int) -> str:
    """Return the window of a column: `T`, `8x`."""
    multiple = comparison.columns[index].multiple
    return "T" if multiple == 1 else length_text(multiple)


def lengths_by_names(lengths_of_rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the lengths at which the same rows are named, `T and 8x`, by the names of the rows."""
    lengths_of: dict[str, list[str]] = {}
    for names, length in lengths_of_rows:
        lengths_of.setdefault(names, []).append(length)
    return {names: " and ".join(lengths) for names, lengths in lengths_of.items()}


def is_below_best(versus: Versus | None) -> bool:
    """Tell whether a row lies below the best of its column: one seed may, as it is no best among several."""
    return versus is not None and versus.difference < 0


def has_unigram_reference(header: Header) -> bool:
    """Tell whether the losses are compared with token frequencies: the text is not that of the training."""
    return header.reference is not None and header.reference.protocol == UNIGRAM
