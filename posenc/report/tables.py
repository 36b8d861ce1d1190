"""Reports as plain text in cells, which terminal, papers and page print and escape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from posenc.report.texts import row_label
from posenc.results.rows import Row

BEST = "*"  # mark of the best cell of a column
TIED = "~"  # mark of a cell whose difference from the best is surely within the margin
# Only two ranks have a mark. No mark means behind or unresolved, and a note says which of them the table has.
MARKS = {"best": BEST, "tied": TIED}  # by rank
# Columns of a table that is too wide are dropped in this order, by their ranks: lengths below T, lengths past
# T from the last but one down, the recall between T and the longest window, and at last the shortest length
# past T.
RECALL_RANK = 500
LAST_LENGTH_RANK = 1000


class TableKind(Enum):
    """Where a table of rows is shown, which decides how much a cell says."""

    SCREEN = auto()  # numbers alone
    PAPER = auto()  # each number with its ±
    FULL = auto()  # each number with its interval


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
    drop_rank: int | None = None  # if the table is too wide the lowest is dropped first, None never


@dataclass(frozen=True)
class Table:
    """Columns of equal length; the first one names the rows."""

    columns: tuple[TableColumn, ...]
    title: str = ""
    n_keys: int = 1  # first columns that every block repeats if the table is cut into blocks

    @property
    def heads(self) -> list[str]:
        """Return the heads of the columns."""
        return [column.head for column in self.columns]

    @property
    def rows(self) -> list[tuple[TableCell, ...]]:
        """Return the cells of each row."""
        return list(zip(*(column.cells for column in self.columns), strict=True))


@dataclass(frozen=True)
class Report:
    """A comparison for a reader: facts, an answer, tables and notes."""

    facts: Sequence[str]  # such as `6 encodings`, `T = 64 bytes`
    answer: str  # may be empty
    tables: Sequence[Table]
    notes: Sequence[str]
    tail: Sequence[str] = ()  # a path, a command: never wrapped
    has_gap: bool = False  # an empty line between the tables and the notes
    label: str = ""  # of a table in LaTeX


def text_column(
    head: str, texts: Iterable[str], *, is_words: bool = False, drop_rank: int | None = None
) -> TableColumn:
    """Return a column of texts without marks."""
    return TableColumn(head, tuple(TableCell(text) for text in texts), is_words, drop_rank)


def names_column(rows: Iterable[Row]) -> TableColumn:
    """Return the column of the rows' names."""
    return text_column("encoding", [row_label(row) for row in rows])


def table_of_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Return a table of texts, given by row."""
    columns = []
    for index, head in enumerate(heads):
        columns.append(text_column(head, [row[index] for row in rows]))
    return Table(tuple(columns), title)
