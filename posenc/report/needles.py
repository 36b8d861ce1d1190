"""Tables of `needle` and `ruler`: the share of planted facts that a model finds, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.report.tables import Table, table_of_rows
from posenc.report.texts import length_text, percent_interval, row_label
from posenc.results.beside.needle import NEEDLE, NeedleCell
from posenc.results.beside.ruler import RULER, RulerCell
from posenc.results.comparison import Row


def found_tables(rows: Sequence[Row]) -> list[Table]:
    """Return the tables of each row: a column for each window, a line for each depth or task of RULER."""
    return [*_needle_tables(rows), *_ruler_tables(rows)]


def _needle_tables(rows: Sequence[Row]) -> list[Table]:
    """Return a table for each row and number of keys."""
    tables = []
    for row in rows:
        cells = NEEDLE.of(row) or ()
        for keys in dict.fromkeys(cell.keys for cell in cells):
            of_keys = [cell for cell in cells if cell.keys == keys]
            heads = [f"{cell.depth:g}" for cell in of_keys]
            among = "" if keys == 1 else f" among {keys}"
            title = f"{row_label(row)}: % of facts found{among}, by depth in the text and window [95% CI]"
            tables.append(_table("depth", heads, of_keys, title))
    return tables


def _ruler_tables(rows: Sequence[Row]) -> list[Table]:
    """Return a table for each row."""
    tables = []
    for row in rows:
        cells = RULER.of(row) or ()
        if cells:
            title = f"{row_label(row)}: % of values found in tasks of RULER, by window [95% CI]"
            tables.append(_table("task", [cell.task for cell in cells], cells, title))
    return tables


def _table(
    first_head: str, heads: Sequence[str], cells: Sequence[NeedleCell | RulerCell], title: str
) -> Table:
    """Return a table with a line for each distinct head; heads[i] is the line of cells[i]."""
    multiples = sorted({cell.multiple for cell in cells})  # windows as multiples of T, a column each
    text_of = {(head, cell.multiple): _cell_text(cell) for head, cell in zip(heads, cells, strict=True)}
    lines = []
    for head in dict.fromkeys(heads):
        texts = [text_of.get((head, multiple), "-") for multiple in multiples]
        lines.append([head, *texts])
    # at most four decimals: 1.3333x
    lengths = [length_text(round(multiple, 4)) for multiple in multiples]
    return table_of_rows([first_head, *lengths], lines, title)


def _cell_text(cell: NeedleCell | RulerCell) -> str:
    """Return the share and its 95% interval, `98 [91, 100]`."""
    return f"{100 * cell.share:.0f} {percent_interval(cell.ci95)}"
