"""A comparison for a terminal: Rich tables in the widths that the layout gives."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.report.entries import Entry
from posenc.report.layout import GAP, Grid, lay_out
from posenc.report.summary import summary_sentence
from posenc.report.words import MARKS, captions, title
from posenc.results.comparison import Comparison

STYLES: dict[str | None, str] = {"lowest": "bold green", "tie": "green"}
ASCII = {"±": "+/-", "─": "-"}


def terminal(comparisons: Sequence[Comparison], width: int, color: bool, unicode: bool) -> str:
    """Tables one below the other, with styles where `color`; at most `width` columns where numbers allow.

    What the notes of one have said, those of the next do not say again.
    """
    tables, said = [], set[str]()
    for comparison in comparisons:
        notes = [line for line in captions(comparison, MARKS) if line not in said]
        said.update(notes)
        tables.append(_one(comparison, notes, width, color, unicode))
    return "\n".join(tables)


def plain(text: str) -> str:
    """Our own signs in ASCII."""
    for character, replacement in ASCII.items():
        text = text.replace(character, replacement)
    return text


def _one(comparison: Comparison, notes: Sequence[str], width: int, color: bool, unicode: bool) -> str:
    grids = lay_out(comparison, width, "±" if unicode else ASCII["±"])
    needed = max(grid.stub_width + sum(w + GAP for w in grid.widths) for grid in grids)
    console = Console(
        file=io.StringIO(),
        width=max(width, needed),
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(Text(title(comparison), style="bold"), overflow="fold")
        if said := summary_sentence(comparison):
            console.print(Text(said if unicode else plain(said)), overflow="fold")
        for grid in grids:
            console.print()
            console.print(_table(grid, "─" if unicode else ASCII["─"]))
        if notes:
            console.print()
        for line in notes:
            console.print(Text(line if unicode else plain(line), style="dim"), overflow="fold")
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _table(grid: Grid, rule: str) -> Table:
    table = Table(box=None, padding=(0, 0), pad_edge=False, show_header=False)
    table.add_column(width=grid.stub_width, overflow="fold")
    for width in grid.widths:
        table.add_column(width=width + GAP, overflow="fold")
    columns = list(zip(grid.heads, grid.widths, strict=True))
    table.add_row("", *(_head(head, width) for head, width in columns))
    table.add_row(rule * grid.stub_width, *(" " + rule * (width + 1) for width in grid.widths))
    for name, entries in zip(grid.stub, grid.entries, strict=True):
        cells = [_entry(one, width) for one, width in zip(entries, grid.widths, strict=True)]
        table.add_row(Text(name, style="bold"), *cells)
    return table


def _head(head: str, width: int) -> Text:
    style = "bold cyan" if "(T)" in head else "bold"
    lines = [Text(line) for folded in head.split("\n") for line in _fold(folded, width)]
    return Text("\n").join(
        [Text(" " * (width + 1 - line.cell_len) + line.plain, style=style) for line in lines]
    )


def _fold(text: str, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    return [line.plain.rstrip() for line in Text(text).wrap(console, width, overflow="fold")] or [""]


def _entry(entry: Entry, width: int) -> Text:
    lines = []
    for i, line in enumerate(entry.lines):
        mark = MARKS[entry.mark] if entry.mark and i == 0 else ""
        style = STYLES.get(entry.mark, "") if i == 0 else "dim"
        lines.append(Text(" " * (width + 1 - cell_len(line)) + line + mark, style=style))
    return Text("\n").join(lines)
