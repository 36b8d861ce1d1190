"""How a comparison fits a width: as it is, with lengths as rows, or in blocks. Numbers are never cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from posenc.report.entries import Entry, entry, head
from posenc.report.extras import extras
from posenc.report.words import label, spread_is_of
from posenc.results.comparison import Comparison

GAP = 2  # a space before each cell, and the place of the mark behind it
LEAST_LABEL = 10  # a label may be folded to this width


@dataclass
class Grid:
    """A table to draw: a stub column of row names, headed columns, entries[row][column]."""

    stub: list[str]
    stub_width: int
    heads: list[str]
    widths: list[int]
    entries: list[list[Entry]]


def lay_out(comparison: Comparison, width: int, sign: str) -> list[Grid]:
    """The grids of the lengths, then those of the small second table, if it has a column.

    At a width where not even one column fits a grid is wider than asked for.
    """
    metric, of = comparison.header["metric"], spread_is_of(comparison)
    baseline = comparison.header["baseline"] is not None
    names = [label(row) for row in comparison.rows]
    shown = [i for i, column in enumerate(comparison.columns) if column.shown]
    entries = [[entry(row.cells[i], metric, of, sign, baseline) for i in shown] for row in comparison.rows]
    grids = _arrange(names, [head(comparison.columns[i]) for i in shown], entries, width, " = ")
    heads, more = extras(comparison, sign)
    return grids + (_arrange(names, heads, more, width, " ") if heads else [])


def _arrange(
    names: list[str], heads: list[str], entries: list[list[Entry]], width: int, joint: str
) -> list[Grid]:
    """One grid where it fits as it is or turned; else as few blocks of columns as fit, of equal size.

    `joint` stands for the line break of a head that becomes the name of a row.
    """
    widths = [_column_width(h, [row[i] for row in entries]) for i, h in enumerate(heads)]
    least = min(max(map(cell_len, names), default=0), max(LEAST_LABEL, _longest_word(names, 16)))
    if least + sum(w + GAP for w in widths) <= width or not heads:
        return [_grid(names, heads, widths, entries, width)]
    turned = [list(column) for column in zip(*entries, strict=True)]
    turned_widths = [max(LEAST_LABEL, *(e.width for e in row)) for row in entries]
    stub = [text.replace("\n", joint) for text in heads]
    if max(map(cell_len, stub)) + sum(w + GAP for w in turned_widths) <= width:
        return [_grid(stub, names, turned_widths, turned, width)]
    blocks = _blocks(widths, width - least)
    return [_grid(names, heads[a:b], widths[a:b], [row[a:b] for row in entries], width) for a, b in blocks]


def _grid(
    stub: list[str], heads: list[str], widths: list[int], entries: list[list[Entry]], width: int
) -> Grid:
    room = max(LEAST_LABEL, width - sum(w + GAP for w in widths))
    stub_width = min(max(map(cell_len, stub), default=0), room)
    return Grid(stub, stub_width, heads, widths, entries)


def _column_width(text: str, entries: Sequence[Entry]) -> int:
    return max([*map(cell_len, text.splitlines()), *(one.width for one in entries)])


def _blocks(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Ranges of columns that fit into `room` (at least one column each), as equal in number as can be."""
    for count in range(1, len(widths) + 1):
        size = -(-len(widths) // count)
        ranges = [(a, min(a + size, len(widths))) for a in range(0, len(widths), size)]
        if all(sum(w + GAP for w in widths[a:b]) <= room for a, b in ranges) or size == 1:
            return ranges
    return []


def _longest_word(names: Sequence[str], most: int) -> int:
    return min(most, max((cell_len(word) for name in names for word in name.split()), default=0))
