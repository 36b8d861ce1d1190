"""Print reports on a terminal, by rich: as wide as the terminal is, and never with a number cut."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import IO, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from posenc.core.errors import plural, visible
from posenc.core.run_states import (
    DAMAGED,
    DEAD,
    DIVERGED,
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    UNKNOWN_STATE,
)
from posenc.report.tables import BEST, TIED, Report, Table, TableCell, TableColumn
from posenc.report.texts import cut

GAP = 2  # columns of the terminal between two columns of a table
LEAST_NAME = 14  # a row's name may be cut to this width, so that all columns fit
LONGEST_UNCUT_NAME = 30  # where columns go below each other, so that names need not be cut
MARK_WIDTH = 2  # a blank and the mark
MARK_STYLES = {BEST: "bold green", TIED: "green"}
WORD_STYLES = {
    "better": "green",
    "same": "green",
    "collapsed": "red",
    FINISHED: "green",
    RUNNING: "cyan",
    INTERRUPTED: "yellow",
    FAILED: "red",
    DIVERGED: "red",
    DEAD: "red",
    DAMAGED: "red",
    UNKNOWN_STATE: "red",
}


# --- the stream


def has_color(stream: TextIO) -> bool:
    """Return whether styles belong on this stream: a capable terminal, or FORCE_COLOR."""
    # rich also reads FORCE_COLOR, of which the stream itself knows nothing.
    console = Console(file=stream)
    return console.is_terminal and not console.is_dumb_terminal


# --- reports


def terminal_text(reports: Sequence[Report], width: int, color: bool) -> str:
    """Return reports one below the other.

    Lengths for which the width is too small are left out, or columns go below each other. A fact that all
    reports share and a note that several have are printed once.
    """
    console = _console(width, color)
    printed_notes: set[str] = set()
    for number, report in enumerate(reports):
        if number:
            console.print()
        _print_line(console, " | ".join(_new_facts(reports, number)), "bold")
        console.print()
        if report.answer:
            _print_line(console, report.answer)
            console.print()
        left_out = _print_tables(console, report.tables, width)
        all_notes = list(report.notes)
        if left_out:
            all_notes.insert(0, f"{plural(left_out, 'more column')}: a wider terminal, or --full")
        notes = [note for note in all_notes if note not in printed_notes]
        printed_notes.update(notes)
        if notes and report.has_gap:
            console.print()
        for note in notes:
            _print_line(console, note, "dim")
        for line in report.tail:
            # Paths and commands are never wrapped, since a line that is broken cannot be copied.
            console.print(Text(visible(line), style="dim"), soft_wrap=True)
    return _without_trailing_blanks(console)


def table_text(table: Table, width: int, color: bool = False) -> str:
    """Return a table without the columns that the width has no room for."""
    console = _console(width, color)
    _print_table(console, drop_columns(table, width), width)
    return _without_trailing_blanks(console)


def _console(width: int, color: bool, file: IO[str] | None = None) -> Console:
    return Console(
        file=io.StringIO() if file is None else file,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        # rich would colour every number and path by itself, and a style here means a verdict.
        highlight=False,
        legacy_windows=False,
    )


def _without_trailing_blanks(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    # Rich fills every cell up to the width of its column.
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def _print_line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(visible(text), style=style))


def _new_facts(reports: Sequence[Report], number: int) -> Sequence[str]:
    """Return the facts of a report; after the first report without those that all of them have."""
    facts = reports[number].facts
    if number == 0:
        return facts
    not_shared = [fact for fact in facts if any(fact not in report.facts for report in reports)]
    # Where a table shares all of its facts with the others, it still needs a line above it.
    return not_shared or facts


def _print_tables(console: Console, tables: Sequence[Table], width: int) -> int:
    """Print tables with an empty line between them; return how many columns were left out."""
    left_out = 0
    blocks = []
    for table in tables:
        narrow_table = drop_columns(table, width)
        left_out += len(table.columns) - len(narrow_table.columns)
        blocks += _blocks(narrow_table, width)
    for number, block in enumerate(blocks):
        if number:
            console.print()
        _print_table(console, block, width)
    return left_out


# --- what fits


def drop_columns(table: Table, width: int) -> Table:
    """Return the table without as many columns, by their rank, as it takes for the others to fit."""
    droppable = [column for column in table.columns if column.drop_rank is not None]
    droppable.sort(key=lambda column: column.drop_rank or 0)
    columns = list(table.columns)
    for column in droppable:
        if _least_width(columns) <= width:
            break
        columns.remove(column)
    return replace(table, columns=tuple(columns))


def _least_width(columns: Sequence[TableColumn]) -> int:
    """Return the width of a table whose names are cut as far as they may be."""
    names = min(column_width(columns[0]), LEAST_NAME)
    return names + sum(GAP + column_width(column) for column in columns[1:])


def _blocks(table: Table, width: int) -> list[Table]:
    """Return the table in as few blocks of columns as fit; each begins with the key columns."""
    names = table.columns[0]
    keys = table.columns[: table.n_keys]
    other_columns = table.columns[table.n_keys :]
    has_words = any(column.is_words for column in table.columns)
    longest_name = LEAST_NAME if has_words else LONGEST_UNCUT_NAME
    room = width - min(column_width(names), longest_name)
    room -= sum(GAP + column_width(key) for key in keys[1:])
    blocks = []
    block: list[TableColumn] = []
    used = 0
    for column in other_columns:
        needed = GAP + column_width(column)
        # A block has at least one column, however wide it is: otherwise this would never end.
        if block and used + needed > room:
            blocks.append(block)
            block = []
            used = 0
        block.append(column)
        used += needed
    blocks.append(block)
    return [replace(table, columns=(*keys, *columns)) for columns in blocks]


def column_width(column: TableColumn) -> int:
    """Return the columns of the terminal that a column needs, marks included."""
    mark_width = MARK_WIDTH if any(cell.mark for cell in column.cells) else 0
    # By cell_len and not by len: a letter of Chinese takes two columns of a terminal.
    widths = [cell_len(visible(cell.text)) + mark_width for cell in column.cells]
    return max([cell_len(visible(column.head)), *widths])


# --- one table


def _print_table(console: Console, table: Table, width: int) -> None:
    if table.title:
        console.print(Text(visible(table.title), style="bold"), soft_wrap=True)
    widths = _widths_of_columns(table, width)
    grid = RichTable(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    texts_by_column = []
    for number, (column, space) in enumerate(zip(table.columns, widths, strict=True)):
        is_name = number == 0
        is_left = is_name or column.is_words
        head = _aligned(Text(visible(column.head)), space, is_left)
        grid.add_column(head, width=space, no_wrap=True)
        has_marks = any(cell.mark for cell in column.cells)
        longest = space if is_name else None
        texts = [_cell_text(cell, has_marks, longest) for cell in column.cells]
        texts_by_column.append([_aligned(text, space, is_left) for text in texts])
    for texts_of_row in zip(*texts_by_column, strict=True):
        grid.add_row(*texts_of_row)
    # A narrower console would make rich shrink a column, and cut its numbers.
    needed = sum(widths) + GAP * len(widths)
    wide_console = _console(max(width, needed), console.is_terminal, console.file)
    wide_console.print(grid)


def _widths_of_columns(table: Table, width: int) -> list[int]:
    """Return the width of each column. Names give way where the table is wider than `width`."""
    widths = [column_width(column) for column in table.columns]
    missing = sum(widths) + GAP * (len(widths) - 1) - width
    if missing > 0:
        # Only names are cut. A number without its last digit would be another number.
        widths[0] = max(min(widths[0], LEAST_NAME), widths[0] - missing)
    return widths


def _aligned(text: Text, width: int, is_left: bool) -> Text:
    """Pad numbers on the left: rich strips the blanks behind right-aligned text that keep room for a mark."""
    if not is_left:
        text.pad_left(width - text.cell_len)
    return text


def _cell_text(cell: TableCell, has_marks: bool, longest: int | None) -> Text:
    """Return a cell; numbers of a column with marks stay below each other."""
    content = visible(cell.text) if longest is None else cut(cell.text, longest)
    if cell.mark:
        return Text(f"{content} {cell.mark}", style=MARK_STYLES[cell.mark])
    # A verdict may have a policy or a number of seeds behind a comma, and its word alone has a style.
    word, _, _ = content.partition(",")
    text = Text(content, style=WORD_STYLES.get(word, ""))
    if has_marks:
        text.append(" " * MARK_WIDTH)
    return text
