"""How a comparison fits a width: as it is, with lengths as rows, or in blocks. Numbers are never cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from posenc.report.words import label, length, spread_is_of
from posenc.results.cells import Cell
from posenc.results.comparison import Column, Comparison
from posenc.results.numbers import printed, printed_change

GAP = 2  # a space before each cell, and the place of the mark behind it
LEAST_LABEL = 10  # a label may be folded to this width


@dataclass
class Entry:
    """The text of a cell: loss, change, note; empty lines where there is nothing to say."""

    lines: list[str]
    best: bool

    @property
    def width(self) -> int:
        """The widest line, in terminal columns."""
        return max(map(cell_len, self.lines), default=0)


@dataclass
class Grid:
    """A table to draw: a stub column of row names, headed columns, entries[row][column]."""

    stub: list[str]
    stub_width: int
    heads: list[str]
    widths: list[int]
    entries: list[list[Entry]]


def entry(cell: Cell, metric: str, of: str | None, sign: str) -> Entry:
    """One cell as text; `of` says what the table's +- is of, `sign` is how it is written."""
    lines = []
    if cell.mean is not None:
        spread = "" if of != "seeds" or cell.spread is None else sign + printed(cell.spread, metric)
        lines.append(printed(cell.mean, metric) + spread)
        if cell.change is not None and (cell.multiple != 1 or cell.change != 0):
            lines.append(printed_change(cell.change, metric) + _change_spread(cell, metric, of, sign))
    if cell.note is not None and cell.mean is not None:  # the reason stands below the table
        lines.append(f"only {cell.seeds} seed" + ("s" if cell.seeds > 1 else ""))
    elif cell.note is not None:
        lines += cell.note.split(", ")
    return Entry(lines or ["-"], cell.best)


def lay_out(comparison: Comparison, width: int, sign: str) -> list[Grid]:
    """One grid where it fits as it is or turned; else as few blocks of lengths as fit, of equal size.

    At a width where not even one column fits the grid is wider than asked for.
    """
    metric, of = comparison.header["metric"], spread_is_of(comparison)
    entries = [[entry(cell, metric, of, sign) for cell in row.cells] for row in comparison.rows]
    heads = [head(column) for column in comparison.columns]
    names = [label(row) for row in comparison.rows]
    widths = [_column_width(h, [row[i] for row in entries]) for i, h in enumerate(heads)]
    least = min(max(map(cell_len, names), default=0), max(LEAST_LABEL, _longest_word(names, 16)))
    if least + sum(w + GAP for w in widths) <= width or not heads:
        return [_grid(names, heads, widths, entries, width)]
    turned = [list(column) for column in zip(*entries, strict=True)]
    turned_widths = [max(LEAST_LABEL, *(e.width for e in row)) for row in entries]
    lengths = [text.replace("\n", " = ") for text in heads]
    if max(map(cell_len, lengths)) + sum(w + GAP for w in turned_widths) <= width:
        return [_grid(lengths, names, turned_widths, turned, width)]
    blocks = _blocks(widths, width - least)
    return [_grid(names, heads[a:b], widths[a:b], [row[a:b] for row in entries], width) for a, b in blocks]


def head(column: Column) -> str:
    """`4x` over its tokens; the training length is marked."""
    name = length(column.multiple) + (" (T)" if column.multiple == 1 else "")
    return name if column.window is None else f"{name}\n{column.window}"


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


def _change_spread(cell: Cell, metric: str, of: str | None, sign: str) -> str:
    if of == "seeds" and cell.change_spread is not None:
        return sign + printed(cell.change_spread, metric)
    if of == "documents" and cell.change_ci95 is not None:
        low, high = cell.change_ci95
        return sign + printed((high - low) / 2, metric)
    return ""
