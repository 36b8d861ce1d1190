"""Make reports of comparisons: one screen, everything, or the table of a paper."""

from __future__ import annotations

import re
from collections.abc import Sequence

from posenc.core.errors import plural
from posenc.report.columns import (
    CELL_COLUMNS,
    ROW_COLUMNS,
    breaks_text,
    half_width,
    loss_text,
)
from posenc.report.sentences import (
    also_measured_note,
    answer,
    beyond_notes,
    facts_of,
    full_notes,
    is_recall_only,
    left_out_notes,
    more_note,
    plus_minus_note,
    ranks_note,
    recall_line,
    recall_note,
    recovered_note,
    sample_line,
    shown_columns,
    unit_note,
)
from posenc.report.tables import BEST, TIED, Report, Table, TableCell, TableColumn, text_column
from posenc.report.texts import length_text, percent_text, row_label, unit_text
from posenc.results.cells import Cell, Column
from posenc.results.comparison import Comparison, Row
from posenc.results.numbers import printed_change
from posenc.results.recall import RecallCell
from posenc.results.records import RECALL
from posenc.results.statistics.verdicts import short_verdict

MARKS = {"best": BEST, "tied": TIED}
# The order in which columns leave a table that is too wide: lengths below T, lengths past T from the last but
# one down, the recall between T and the longest window, and at last the shortest length past T.
RECALL_LEAVES = 500
LAST_LENGTH_LEAVES = 1000


def short_report(comparison: Comparison, with_short_lengths: bool = False) -> Report:
    """Return one screen: a line for each row, or for a single row a line for each quantity.

    `with_short_lengths`: lengths below T are shown, too.
    """
    is_single = len(comparison.rows) == 1 and len(comparison.columns) > 0
    if is_single and comparison.header.baseline is None and not is_recall_only(comparison):
        return _run_report(comparison)
    notes = []
    if not is_recall_only(comparison):
        notes += [unit_note(comparison), recovered_note(comparison.rows)]
    notes += [recall_note(comparison, with_interval=False), *beyond_notes(comparison)]
    notes += [*left_out_notes(comparison.header), more_note(comparison)]
    table = rows_table(comparison, with_short_lengths)
    return Report(facts_of(comparison), answer(comparison), [table], _said(notes))


def paper_report(comparison: Comparison, with_short_lengths: bool = False) -> Report:
    """Return the table of a paper: each number with its ±, what it is of as the caption."""
    header = comparison.header
    notes = []
    if not is_recall_only(comparison):
        notes += [unit_note(comparison), recovered_note(comparison.rows, with_interval=True)]
    notes += [
        recall_note(comparison, with_interval=True),
        *beyond_notes(comparison),
        plus_minus_note(comparison),
        ranks_note(comparison),
    ]
    name = "-".join(["posenc", header.protocol, header.metric, *map(str, header.group.values())])
    return Report(
        facts=[*facts_of(comparison), *_said(notes)],
        answer="",
        tables=[rows_table(comparison, with_short_lengths, is_paper=True)],
        notes=[],
        name="tab:" + re.sub(r"[^A-Za-z0-9-]+", "-", name),
    )


def full_report(comparison: Comparison) -> Report:
    """Return everything: each number with its interval, recall, and what there is of each row."""
    tables = []
    lengths = _lengths_table(comparison)
    has_numbers = len(lengths.columns) > lengths.keys
    if has_numbers and comparison.header.protocol != RECALL:
        tables.append(lengths)
    if comparison.recall is not None:
        tables.append(recall_table(comparison))
    tables.append(_side_table(comparison))
    facts = facts_of(comparison)
    return Report(facts, answer(comparison), tables, full_notes(comparison), has_gap=True)


def _said(notes: Sequence[str]) -> list[str]:
    """Return the notes that say something."""
    return [note for note in notes if note]


def _names_column(rows: Sequence[Row]) -> TableColumn:
    return text_column("encoding", [row_label(row) for row in rows])


def _length_head(column: Column) -> str:
    head = length_text(column.multiple)
    return f"{head} (T)" if column.multiple == 1 else head


# --- a single row: a line for each quantity


def _run_report(comparison: Comparison) -> Report:
    (row,) = comparison.rows
    header = comparison.header
    notes = [
        recall_line(comparison),
        sample_line(comparison),
        recovered_note(comparison.rows),
        also_measured_note(header),
        *left_out_notes(header),
    ]
    table = _run_table(comparison, row)
    return Report(facts_of(comparison), answer(comparison), [table], _said(notes), has_gap=True)


def _run_table(comparison: Comparison, row: Row) -> Table:
    """Return a column for each length; its cells are the loss, the change, the interval and the verdict."""
    shown = shown_columns(comparison)
    lines = _filled_lines(comparison, [(row, row.cells[index]) for index in shown])
    first_head = "position" if row.curve is not None else "context"
    columns = [text_column(first_head, [head for head, _, _ in lines])]
    leaves = _leaving([comparison.columns[index] for index in shown])
    for place, index in enumerate(shown):
        head = _run_head(comparison.columns[index])
        columns.append(text_column(head, [texts[place] for _, texts, _ in lines], leaves=leaves.get(place)))
    units = [unit_text(comparison.header) if head == "loss" else "" for head, _, _ in lines]
    columns.append(text_column("", units, is_words=True))
    return Table(tuple(columns))


def _run_head(column: Column) -> str:
    head = str(column.window) if column.window else length_text(column.multiple)
    return f"{head} = T" if column.multiple == 1 else head


def _filled_lines(
    comparison: Comparison, cells: Sequence[tuple[Row, Cell]]
) -> list[tuple[str, list[str], bool]]:
    """Return head, texts and whether these are words, of each column that has a text for any cell."""
    lines = []
    for column in CELL_COLUMNS:
        if column.head is None:
            continue
        texts = [column.text(comparison, row, cell) for row, cell in cells]
        if any(text.strip("-") for text in texts):
            lines.append((column.head(comparison), texts, column.is_words))
    return lines


def _leaving(columns: Sequence[Column]) -> dict[int, int]:
    """Return the order in which lengths leave a table that is too wide, by place; T and the longest stay."""
    below = [place for place, column in enumerate(columns) if column.multiple < 1]
    past = [place for place, column in enumerate(columns[:-1]) if column.multiple > 1]
    order = [*below, *reversed(past)]
    ranks = {place: rank for rank, place in enumerate(order)}
    if order:
        ranks[order[-1]] = LAST_LENGTH_LEAVES
    return ranks


# --- a line for each row


def rows_table(comparison: Comparison, with_short_lengths: bool = False, is_paper: bool = False) -> Table:
    """Return a line for each row: the loss at T, the change elsewhere, the verdict at the longest length.

    With a baseline the numbers are differences to it; recall stands behind the losses. In a paper each
    number has its ±.
    """
    if is_recall_only(comparison):
        return Table((_names_column(comparison.rows), *_recall_columns(comparison, is_paper)))
    shown = _lengths_of_rows(comparison, with_short_lengths)
    columns = [
        _names_column(comparison.rows),
        *_length_columns(comparison, shown, is_paper),
        *_short_row_columns(comparison, is_paper),
    ]
    last_words = _last_words_column(comparison, shown)
    if any(cell.text for cell in last_words.cells):
        columns.append(last_words)
    if comparison.recall is not None:
        columns += _recall_columns(comparison, is_paper)
    return Table(tuple(columns))


def _lengths_of_rows(comparison: Comparison, with_short_lengths: bool) -> list[int]:
    """Return the columns that are shown: from T on, unless there is nothing past T."""
    shown = shown_columns(comparison)
    is_past = any(comparison.columns[index].multiple > 1 for index in shown)
    if with_short_lengths or not is_past:
        return shown
    return [index for index in shown if comparison.columns[index].multiple >= 1]


def _length_columns(comparison: Comparison, shown: Sequence[int], is_paper: bool) -> list[TableColumn]:
    leaves = _leaving([comparison.columns[index] for index in shown])
    columns = []
    for place, index in enumerate(shown):
        cells = tuple(_length_cell(comparison, row, index, is_paper) for row in comparison.rows)
        head = _length_head(comparison.columns[index])
        columns.append(TableColumn(head, cells, leaves=leaves.get(place)))
    return columns


def _length_cell(comparison: Comparison, row: Row, index: int, is_paper: bool) -> TableCell:
    """Return the number of a row at a length: the loss at T, elsewhere the change."""
    cell = row.cells[index]
    metric = comparison.header.metric
    has_baseline = comparison.header.baseline is not None
    if has_baseline and cell.versus_baseline is not None:
        text = printed_change(cell.versus_baseline.difference, metric)
        half = half_width(metric, None, cell.versus_baseline.ci95)
    elif cell.mean is None or has_baseline or cell.multiple == 1:
        text = loss_text(metric, cell)
        half = half_width(metric, cell.spread)
    elif cell.change is None:  # a loss that nothing at T can be subtracted from
        text = f"({loss_text(metric, cell)})"
        half = ""
    else:
        text = printed_change(cell.change, metric)
        half = half_width(metric, cell.change_spread, cell.change_ci95)
    mark = MARKS.get(cell.versus_best.word, "") if cell.versus_best else ""
    return TableCell(text + half if is_paper else text, mark)


def _short_row_columns(comparison: Comparison, is_paper: bool) -> list[TableColumn]:
    """Return the columns of ROW_COLUMNS that are in the table of one screen and have a text."""
    columns = []
    for column in ROW_COLUMNS:
        write_text = column.paper if is_paper and column.paper is not None else column.short
        if column.head is None or write_text is None:
            continue
        has_value = any(column.text(row) for row in comparison.rows)
        if has_value:
            columns.append(text_column(column.head(comparison), [write_text(row) for row in comparison.rows]))
    return columns


def _last_words_column(comparison: Comparison, shown: Sequence[int]) -> TableColumn:
    """Return the verdicts at the longest length, with what is particular: policy, seeds, failures."""
    if not shown:
        texts = ["; ".join(row.notes) for row in comparison.rows]
        return text_column("reason", texts, is_words=True)
    length = length_text(comparison.columns[shown[-1]].multiple)
    if any(row.curve for row in comparison.rows):
        head = "breaks at"
    elif comparison.header.baseline is not None:
        head = f"at {length}"
    elif comparison.recall is not None:
        head = "verdict"  # as wide as its words, so that the recall fits into 80 columns, too
    else:
        head = f"verdict at {length}"
    usual_seeds = _usual_seeds(comparison.rows)
    texts = [_last_words(comparison, row, row.cells[shown[-1]], usual_seeds) for row in comparison.rows]
    return text_column(head, texts, is_words=True)


def _usual_seeds(rows: Sequence[Row]) -> int:
    """Return how many seeds most rows have."""
    counts = [max((cell.seeds for cell in row.cells), default=0) for row in rows]
    return max(set(counts), key=counts.count)


def _last_words(comparison: Comparison, row: Row, cell: Cell, usual_seeds: int) -> str:
    parts = [_verdict_word(comparison, row, cell)]
    # Beside columns of recall there is no room: then it is a note.
    if row.beyond and (len(comparison.rows) == 1 or comparison.recall is None):
        parts.append(f"beyond={row.beyond}")
    if cell.mean is not None and cell.note:
        parts.append(cell.note)
    elif cell.seeds not in (0, usual_seeds):
        parts.append(plural(cell.seeds, "seed"))
    return ", ".join(part for part in parts if part)


def _verdict_word(comparison: Comparison, row: Row, cell: Cell) -> str:
    if row.curve is not None:
        return breaks_text(row.curve)
    if comparison.header.baseline is not None:
        if cell.versus_baseline is not None:
            return cell.versus_baseline.word
        return "baseline" if row_label(row) == comparison.header.baseline else ""
    if all(other.undertrained for other in comparison.rows):
        return ""  # the answer says it once
    return "undertrained" if row.undertrained else short_verdict(cell.verdict or "")


# --- recall


def recall_table(comparison: Comparison) -> Table:
    """Return the recall of each row with its interval, and every rank."""
    columns = _recall_columns(comparison, is_paper=False, is_full=True)
    return Table((_names_column(comparison.rows), *columns), "recall, % with 95% CI")


def _recall_columns(comparison: Comparison, is_paper: bool, is_full: bool = False) -> list[TableColumn]:
    """Return recall within T, and in each longer window at its farthest distance, in per cent."""
    assert comparison.recall is not None
    multiples = comparison.recall.multiples
    heads = ["recall@T", *(f"@{length_text(multiple)}" for multiple in multiples)]
    columns = []
    for place, head in enumerate(heads):
        is_last = place == len(heads) - 1
        # On one screen there is no room for all ranks: those of the longest window.
        has_ranks = is_full or is_last
        cells = tuple(_recall_cell(row, place, is_paper, is_full, has_ranks) for row in comparison.rows)
        may_leave = place > 0 and not is_last and not is_full and not is_recall_only(comparison)
        columns.append(TableColumn(head, cells, leaves=RECALL_LEAVES - place if may_leave else None))
    return columns


def _recall_cell(row: Row, place: int, is_paper: bool, is_full: bool, has_ranks: bool) -> TableCell:
    if row.recall is None:
        return TableCell("-")
    cell = [row.recall.within, *row.recall.beyond][place]
    if cell is None:
        return TableCell("-")
    text = _recall_text(cell, is_paper, is_full)
    if row.recall.learned is False and not is_full:
        text = f"({text})"
    mark = MARKS.get(cell.rank or "", "") if has_ranks else ""
    return TableCell(text, mark)


def _recall_text(cell: RecallCell, is_paper: bool, is_full: bool) -> str:
    number = percent_text(cell).removesuffix("%")
    low, high = cell.ci95
    if is_full:
        return f"{number} [{100 * low:.0f}, {100 * high:.0f}]"
    if is_paper:
        return f"{number}±{50 * (high - low):.0f}"
    return number


# --- everything


def _lengths_table(comparison: Comparison) -> Table:
    """Return a line for each row and length, with every column that has a number."""
    shown = shown_columns(comparison)
    cells = []
    heads = []
    for row in comparison.rows:
        for index in shown:
            cells.append((row, row.cells[index]))
            heads.append(_length_head(comparison.columns[index]))
    columns = [
        text_column("encoding", [row_label(row) for row, _ in cells]),
        text_column("context", heads),
    ]
    for head, texts, is_words in _filled_lines(comparison, cells):
        columns.append(text_column(head, texts, is_words=is_words))
    return Table(tuple(columns), f"by length, in {unit_text(comparison.header)}", keys=2)


def _side_table(comparison: Comparison) -> Table:
    """Return what there is of each row: seeds, headroom, recall horizon."""
    columns = [_names_column(comparison.rows)]
    for column in ROW_COLUMNS:
        if column.head is None:
            continue
        texts = [column.text(row) for row in comparison.rows]
        if any(texts):
            columns.append(text_column(column.head(comparison), [text or "-" for text in texts]))
    return Table(tuple(columns), "per row")


def cell_lines(cell: Cell, metric: str) -> list[str]:
    """Return loss, change and verdict of a cell, each ± its spread, or why there is no number."""
    if cell.mean is None:
        return [loss_text(metric, cell)]
    lines = [loss_text(metric, cell) + half_width(metric, cell.spread)]
    if cell.change is not None and (cell.multiple != 1 or cell.change != 0):
        half = half_width(metric, cell.change_spread, cell.change_ci95)
        lines.append(printed_change(cell.change, metric) + half)
    if cell.verdict:
        lines.append(short_verdict(cell.verdict))
    return lines
