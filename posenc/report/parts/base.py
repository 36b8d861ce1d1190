"""The types of a part of reports, as data: an entry has everything that is said of a number.

A column has its head and its text in tables, its fields in CSV, its terms in `--explain`. A new column is a
new entry. Where no result has its number yet, that needs a field in posenc/results, which brings it into the
JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from posenc.report.tables import Table
from posenc.results.beside.base import LAST
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison
from posenc.results.rows import Row
from posenc.results.statistics.intervals import Interval

if TYPE_CHECKING:  # they import altair, which takes half a second
    from posenc.report.charts.base import Chart, Panel, RowNames
    from posenc.report.charts.looks import Look

CsvFields = dict[str, Any]
# Plain dictionaries, since each part adds fields of its own, which no single type could list.
Line = dict[str, Any]  # of CSV
Term = tuple[str, str]  # a word and what it means, for --explain


@dataclass(frozen=True, kw_only=True)
class CellColumn:
    """A number of each row and window. Without a head it is in CSV only."""

    head: Callable[[Comparison], str] | None = None
    text: Callable[[Comparison, Row, Cell], str] = lambda comparison, row, cell: ""
    csv: Callable[[Comparison, Row, Cell], CsvFields] = lambda comparison, row, cell: {}
    terms: tuple[Term, ...] = ()
    is_words: bool = False


@dataclass(frozen=True, kw_only=True)
class RowColumn:
    """A number of each row. Without a head it is in CSV only."""

    head: Callable[[Comparison], str] | None = None
    text: Callable[[Row], str] = lambda row: ""  # in the tables of --full
    short: Callable[[Row], str] | None = None  # in the table of one screen; None: it has no such column
    paper: Callable[[Row], str] | None = None  # in a paper, with its interval
    csv: Callable[[Comparison, Row], CsvFields] = lambda comparison, row: {}
    terms: tuple[Term, ...] = ()
    protocol: str | None = None  # the table of this protocol has its `text` also on one screen


@dataclass(frozen=True, kw_only=True)
class ChartKind:
    """A kind of chart, which `--plot-kind` names; `CHARTS` in the file of a part says what it shows."""

    name: str
    make: Callable[[Sequence[Panel], RowNames, Look], Chart | None]  # None without a number
    problem: str = "no run has a number yet"  # if there is nothing to draw
    needs_full_width: bool = False  # panels stand below each other
    page: Literal["losses", "tasks"] | None = None  # the tables on the page of --html that have it
    protocol: str | None = None  # the table of this protocol is drawn so unless --plot-kind says otherwise


@dataclass(frozen=True, kw_only=True)
class ReportPart:
    """What reports show of one concept."""

    cell_columns: tuple[CellColumn, ...] = ()
    row_columns: tuple[RowColumn, ...] = ()
    tables: Callable[[Sequence[Row]], Iterable[Table]] | None = None  # below the table of the rows
    lines: Callable[[Row], Iterable[Line]] | None = None  # of CSV, in addition to those of the windows
    charts: tuple[ChartKind, ...] = ()
    protocol: str | None = None  # whose numbers these are, if they are of one protocol
    order: int = LAST  # among all parts; parts of the same order are sorted by their names


def with_interval(name: str, value: float | None, interval: Interval | None) -> CsvFields:
    """Return a number with the ends of its interval, as fields of CSV."""
    # Both fields are there without an interval, too, so that each line of CSV has them.
    low, high = interval or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}
