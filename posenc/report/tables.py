"""A report as plain text in cells: what terminal, papers and page all print. They escape it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BEST = "*"  # mark of the best cell of a column
TIED = "~"  # mark of a cell that is not distinguishable from the best


@dataclass(frozen=True)
class TableCell:
    """The text of a cell; `mark` is BEST, TIED or empty."""

    text: str = ""
    mark: str = ""


@dataclass(frozen=True)
class TableColumn:
    """A head with a cell for each row. Numbers are aligned to the right, words to the left."""

    head: str
    cells: tuple[TableCell, ...]
    is_words: bool = False
    leaves: int | None = None  # where the width is too small: the lowest goes first; None: it stays


@dataclass(frozen=True)
class Table:
    """Columns of equal length; the first one names the rows."""

    columns: tuple[TableColumn, ...]
    title: str = ""
    keys: int = 1  # columns that are repeated where the others go below each other

    @property
    def heads(self) -> list[str]:
        """The heads of the columns."""
        return [column.head for column in self.columns]

    @property
    def rows(self) -> list[tuple[TableCell, ...]]:
        """The cells by row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))


@dataclass(frozen=True)
class Report:
    """What a reader gets."""

    facts: Sequence[str]  # what the numbers are of
    answer: str  # empty: there is none
    tables: Sequence[Table]
    notes: Sequence[str]
    tail: Sequence[str] = ()  # a path, a command: never wrapped
    has_gap: bool = False  # an empty line between the tables and the notes
    name: str = ""  # for a paper's label


def text_column(
    head: str, texts: Iterable[str], *, is_words: bool = False, leaves: int | None = None
) -> TableColumn:
    """Return a column of texts without marks."""
    return TableColumn(head, tuple(TableCell(text) for text in texts), is_words, leaves)


def table_of_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Return a table of texts, given by row."""
    columns = []
    for index, head in enumerate(heads):
        columns.append(text_column(head, [row[index] for row in rows]))
    return Table(tuple(columns), title)
