"""A comparison for a terminal: Rich tables in the widths that the layout gives."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.report.layout import GAP, Grid, lay_out
from posenc.report.words import captions, title
from posenc.results.comparison import Comparison

RULE = "─"


def terminal(comparisons: Sequence[Comparison], width: int, color: bool) -> str:
    """Tables one below the other, with styles where `color`; at most `width` columns where numbers allow."""
    return "\n".join(_one(comparison, width, color) for comparison in comparisons)


def _one(comparison: Comparison, width: int, color: bool) -> str:
    grids = lay_out(comparison, width)
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
        for grid in grids:
            console.print()
            console.print(_table(grid))
        console.print()
        for line in captions(comparison):
            console.print(Text(line, style="dim"), overflow="fold")
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def _table(grid: Grid) -> Table:
    table = Table(box=None, padding=(0, 0), pad_edge=False, show_header=False)
    table.add_column(width=grid.stub_width, overflow="fold")
    for width in grid.widths:
        table.add_column(width=width + GAP, justify="right", overflow="fold")
    heads = [
        Text(head, style="bold cyan" if "(T)" in head else "bold", justify="right") for head in grid.heads
    ]
    table.add_row("", *(_indent(text) for text in heads))
    table.add_row(Text(RULE * grid.stub_width), *(Text(RULE * (width + GAP)) for width in grid.widths))
    for name, entries in zip(grid.stub, grid.entries, strict=True):
        table.add_row(Text(name, style="bold"), *(_entry(entry.lines, entry.best) for entry in entries))
    return table


def _entry(lines: Sequence[str], best: bool) -> Text:
    first = Text(lines[0], style="bold green" if best else "")
    return Text("\n", justify="right").join([first, *(Text(line, style="dim") for line in lines[1:])])


def _indent(text: Text) -> Text:
    return text
