"""What reports show of each concept: columns, tables, charts. A file each, found by walking this folder.

A file has one `ReportPart` (base.py). Tables, CSV, `--explain`, pictures and the page go through all parts,
and know none by name.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Sequence

from posenc.report.charts.names import DEFAULT_PLOT
from posenc.report.parts.base import CellColumn, ChartKind, Line, ReportPart, RowColumn
from posenc.report.tables import Table
from posenc.results.rows import Row


@functools.cache
def all_parts() -> tuple[ReportPart, ...]:
    """Return the parts of all files, in their order."""
    parts: list[ReportPart] = []
    for file in pkgutil.iter_modules(__path__):  # sorted by name
        # Importing the parts imports no altair: a part imports its chart only when it is drawn.
        values = vars(importlib.import_module(f"{__name__}.{file.name}")).values()
        parts += [value for value in values if isinstance(value, ReportPart)]
    return tuple(sorted(parts, key=lambda part: part.order))


def cell_columns() -> list[CellColumn]:
    """Return the columns with a number of each row and window."""
    columns: list[CellColumn] = []
    for part in all_parts():
        columns += part.cell_columns
    return columns


def row_columns() -> list[RowColumn]:
    """Return the columns with a number of each row."""
    columns: list[RowColumn] = []
    for part in all_parts():
        columns += part.row_columns
    return columns


def tables_of_parts(rows: Sequence[Row]) -> list[Table]:
    """Return the tables that stand below the table of the rows."""
    tables: list[Table] = []
    for part in all_parts():
        if part.tables is not None:
            tables += part.tables(rows)
    return tables


def protocols_with_tables() -> set[str]:
    """Return the protocols whose numbers have tables of their own."""
    return {part.protocol for part in all_parts() if part.protocol and part.tables is not None}


def csv_lines(row: Row) -> Iterator[Line]:
    """Yield the extra CSV lines of a row, beside the line of each window."""
    for part in all_parts():
        if part.lines is not None:
            yield from part.lines(row)


@functools.cache
def chart_kinds() -> dict[str, ChartKind]:
    """Return the kinds of charts by their names."""
    kinds: dict[str, ChartKind] = {}
    for part in all_parts():
        kinds |= {kind.name: kind for kind in part.charts}
    return kinds


def chart_of_protocol(protocol: str) -> str:
    """Return the kind of chart that draws a protocol's table: its own, or the usual chart of losses."""
    kinds = [kind.name for kind in chart_kinds().values() if kind.protocol == protocol]
    return kinds[0] if kinds else DEFAULT_PLOT
