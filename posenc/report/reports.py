"""Make reports of comparisons: one screen, everything, or the table of a paper."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from posenc.core.errors import plural
from posenc.core.quantities import length_text
from posenc.report.cell_texts import LOSS_HEAD, breaks_text, half_width, has_curves, loss_text, rank_of_number
from posenc.report.parts import cell_columns, row_columns, tables_of_parts
from posenc.report.parts.exact import exact_table, tokens_table
from posenc.report.parts.recall import recall_columns_of, recall_table
from posenc.report.sentences.answer import answer
from posenc.report.sentences.exact import exact_notes, is_exact
from posenc.report.sentences.facts import facts_of
from posenc.report.sentences.marks import marks_note, paper_marks_note
from posenc.report.sentences.notes import (
    also_measured_note,
    beyond_notes,
    full_notes,
    left_out_notes,
    more_note,
    plus_minus_note,
    reason_notes,
    recovered_note,
    sample_line,
    unit_note,
)
from posenc.report.sentences.recall import recall_line, recall_note
from posenc.report.sentences.shared import is_recall_only, shown_columns
from posenc.report.sentences.why import why_notes
from posenc.report.tables import (
    LAST_LENGTH_RANK,
    MARKS,
    Report,
    Table,
    TableCell,
    TableColumn,
    TableKind,
    names_column,
    text_column,
)
from posenc.report.texts import row_label, unit_text
from posenc.results.beside.recall import RECALL
from posenc.results.cells import Cell, Column
from posenc.results.comparison import Comparison
from posenc.results.numbers import printed_change
from posenc.results.rows import Row


@dataclass(frozen=True)
class QuantityLine:
    """A quantity of cells, such as the loss: its head, and a text for each cell."""

    head: str
    texts: list[str]
    is_words: bool


def short_report(comparison: Comparison, with_short_lengths: bool = False) -> Report:
    """Return one screen: a line for each row, or for a single row a line for each quantity.

    With `with_short_lengths` the lengths below T are shown as well.
    """
    if is_exact(comparison):
        notes = [*exact_notes(comparison), *left_out_notes(comparison.header)]
        return Report(facts_of(comparison), answer(comparison), [exact_table(comparison)], notes)
    if _is_one_measured_row(comparison):
        return _run_report(comparison)
    notes = []
    if not is_recall_only(comparison):
        notes += [unit_note(comparison), recovered_note(comparison.rows)]
    notes.append(recall_note(comparison, with_interval=False))
    if not _has_room_for_policies(comparison, TableKind.SCREEN):
        notes += beyond_notes(comparison)
    notes += why_notes(comparison)
    notes += reason_notes(comparison)
    notes += left_out_notes(comparison.header)
    lengths = _lengths_of_table(comparison, with_short_lengths)
    notes += [marks_note(comparison, lengths), more_note(comparison)]
    table = rows_table(comparison, with_short_lengths)
    tables = [table, *tables_of_parts(comparison.rows)]
    return Report(facts_of(comparison), answer(comparison), tables, _non_empty(notes))


def _is_one_measured_row(comparison: Comparison) -> bool:
    """Tell whether the only row has losses, which are not differences to a baseline."""
    # With a baseline the only row has differences, and their words are not those of a single run.
    has_one_row = len(comparison.rows) == 1 and len(comparison.columns) > 0
    return has_one_row and comparison.header.baseline is None and not is_recall_only(comparison)


def paper_report(comparison: Comparison, with_short_lengths: bool = False) -> Report:
    """Return the table of a paper: each number with its ±, and the notes that explain it."""
    header = comparison.header
    # In the label, since two tables of one paper would have the same one otherwise, and \ref would find the
    # first.
    conditions = [str(value) for value in header.group.values()]
    label = "-".join(["posenc", header.protocol, header.metric, *conditions])
    return Report(
        facts=facts_of(comparison),
        answer="",
        tables=[rows_table(comparison, with_short_lengths, TableKind.PAPER)],
        notes=_paper_notes(comparison, with_short_lengths),
        # A label of LaTeX must not hold `%`, `#` or a brace.
        label="tab:" + re.sub(r"[^A-Za-z0-9-]+", "-", label),
    )


def _paper_notes(comparison: Comparison, with_short_lengths: bool) -> list[str]:
    """Return what the numbers and marks of a paper's table mean."""
    if is_exact(comparison):
        return exact_notes(comparison)
    notes = []
    if not is_recall_only(comparison):
        notes += [unit_note(comparison), recovered_note(comparison.rows, with_interval=True)]
    notes += [
        recall_note(comparison, with_interval=True),
        *beyond_notes(comparison),
        plus_minus_note(comparison),
        paper_marks_note(comparison, _lengths_of_table(comparison, with_short_lengths)),
    ]
    return _non_empty(notes)


def full_report(comparison: Comparison) -> Report:
    """Return everything: each number with its interval, the recall, and the figures of each row."""
    tables = []
    if is_exact(comparison):
        tables += [exact_table(comparison, full=True), tokens_table(comparison)]
    lengths_table = _lengths_table(comparison)
    has_numbers = len(lengths_table.columns) > lengths_table.n_keys
    # The protocol `recall` has windows of its own. Their losses are no change against T.
    if has_numbers and comparison.header.protocol != RECALL.protocol:
        tables.append(lengths_table)
    table_recall = RECALL.of_table(comparison)
    if table_recall is not None:
        tables.append(recall_table(comparison, table_recall))
    tables += tables_of_parts(comparison.rows)
    tables.append(_rows_figures_table(comparison))
    facts = facts_of(comparison)
    return Report(facts, answer(comparison), tables, full_notes(comparison), has_gap=True)


def _non_empty(texts: Sequence[str]) -> list[str]:
    """Return the texts that are not empty: a note is empty where there is nothing to say."""
    return [text for text in texts if text]


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
        *why_notes(comparison),
        *reason_notes(comparison),
        also_measured_note(comparison),
        *left_out_notes(header),
    ]
    tables = [_run_table(comparison, row), *tables_of_parts([row])]
    return Report(facts_of(comparison), answer(comparison), tables, _non_empty(notes), has_gap=True)


def _run_table(comparison: Comparison, row: Row) -> Table:
    """Return a column for each length; its cells are the loss, the change, the interval and the verdict."""
    column_indices = shown_columns(comparison)
    lines = _quantity_lines(comparison, [(row, row.cells[index]) for index in column_indices])
    first_head = "position" if row.curve is not None else "context"
    columns = [text_column(first_head, [line.head for line in lines])]
    ranks = _drop_ranks([comparison.columns[index] for index in column_indices])
    for number, index in enumerate(column_indices):
        head = _run_head(comparison.columns[index])
        texts = [line.texts[number] for line in lines]
        columns.append(text_column(head, texts, drop_rank=ranks.get(number)))
    # Once, behind the losses: the lines below are in the same unit, and a screen has no room to repeat it.
    units = [unit_text(comparison.header) if line.head == LOSS_HEAD else "" for line in lines]
    columns.append(text_column("", units, is_words=True))
    return Table(tuple(columns))


def _run_head(column: Column) -> str:
    head = str(column.window) if column.window else length_text(column.multiple)
    return f"{head} = T" if column.multiple == 1 else head


def _quantity_lines(comparison: Comparison, cells: Sequence[tuple[Row, Cell]]) -> list[QuantityLine]:
    """Return the quantities that have a text in any of the cells."""
    lines = []
    for column in cell_columns():
        if column.head is None:
            continue
        texts = [column.text(comparison, row, cell) for row, cell in cells]
        # Judged over all cells, so that the lines of a table have the same quantities in each column.
        if any(text not in ("", "-") for text in texts):
            lines.append(QuantityLine(column.head(comparison), texts, column.is_words))
    return lines


def _drop_ranks(columns: Sequence[Column]) -> dict[int, int]:
    """Return the rank of each length by its index in the columns; T and the longest length have none."""
    below = [index for index, column in enumerate(columns) if column.multiple < 1]
    past = [index for index, column in enumerate(columns[:-1]) if column.multiple > 1]
    # T and the longest length stay in any case: the loss of the model, and the answer to the question of the
    # table.
    order = [*below, *reversed(past)]
    ranks = {index: rank for rank, index in enumerate(order)}
    if order:
        ranks[order[-1]] = LAST_LENGTH_RANK
    return ranks


# --- a line for each row


def rows_table(
    comparison: Comparison, with_short_lengths: bool = False, kind: TableKind = TableKind.SCREEN
) -> Table:
    """Return a line for each row: the loss at T, the change elsewhere, the verdict at the longest length.

    With a baseline the numbers are differences to it. Recall stands behind the losses.
    """
    if is_exact(comparison):
        return exact_table(comparison)
    columns = [names_column(comparison.rows)]
    if not is_recall_only(comparison):
        column_indices = _lengths_of_table(comparison, with_short_lengths)
        columns += _length_columns(comparison, column_indices, kind)
        columns += _short_row_columns(comparison, kind)
        verdicts = _verdict_column(
            comparison, column_indices, with_policies=_has_room_for_policies(comparison, kind)
        )
        if any(cell.text for cell in verdicts.cells):
            columns.append(verdicts)
    table_recall = RECALL.of_table(comparison)
    if table_recall is not None:
        columns += recall_columns_of(comparison, table_recall, kind)
    return Table(tuple(columns))


def _lengths_of_table(comparison: Comparison, with_short_lengths: bool) -> list[int]:
    """Return the indices of the columns to show: from T on, unless there is nothing past T."""
    if is_recall_only(comparison):
        return []
    column_indices = shown_columns(comparison)
    has_longer = any(comparison.columns[index].multiple > 1 for index in column_indices)
    # Lengths below T only say whether the model uses its context at all. Without longer lengths nothing else
    # is left.
    if with_short_lengths or not has_longer:
        return column_indices
    return [index for index in column_indices if comparison.columns[index].multiple >= 1]


def _length_columns(
    comparison: Comparison, column_indices: Sequence[int], kind: TableKind
) -> list[TableColumn]:
    ranks = _drop_ranks([comparison.columns[index] for index in column_indices])
    columns = []
    for number, index in enumerate(column_indices):
        cells = tuple(_length_cell(comparison, row.cells[index], kind) for row in comparison.rows)
        head = _length_head(comparison.columns[index])
        columns.append(TableColumn(head, cells, drop_rank=ranks.get(number)))
    return columns


def _length_cell(comparison: Comparison, cell: Cell, kind: TableKind) -> TableCell:
    """Return the number of a row at a length: the loss at T, elsewhere the change."""
    text, half = _number_and_half_width(comparison, cell)
    if kind is TableKind.PAPER:
        text += half
    rank = rank_of_number(comparison, cell)
    return TableCell(text) if rank is None else TableCell(text, MARKS.get(rank.word, ""))


def _number_and_half_width(comparison: Comparison, cell: Cell) -> tuple[str, str]:
    """Return the number of a cell as text, and half of its interval or spread, such as `±0.012`."""
    metric = comparison.header.metric
    loss = loss_text(metric, cell)
    if comparison.header.baseline is not None:
        if cell.versus_baseline is None:  # the baseline itself, or a row that cannot be compared with it
            return loss, half_width(metric, cell.spread)
        versus = cell.versus_baseline
        return printed_change(versus.difference, metric), half_width(metric, None, versus.ci95)
    if cell.mean is None or cell.multiple == 1:
        return loss, half_width(metric, cell.spread)
    if cell.change is None:  # there is no loss at T to subtract
        return f"({loss})", ""
    half = half_width(metric, cell.change_spread, cell.change_ci95)
    return printed_change(cell.change, metric), half


def _short_row_columns(comparison: Comparison, kind: TableKind) -> list[TableColumn]:
    """Return the columns of rows that are in the table of one screen and have a text."""
    columns = []
    for column in row_columns():
        write_text = column.short
        if column.protocol == comparison.header.protocol:
            write_text = column.text
        if kind is TableKind.PAPER and column.paper is not None:
            write_text = column.paper
        if column.head is None or write_text is None:
            continue
        texts = [write_text(row) for row in comparison.rows]
        # A column without any text would take its width from those that have some.
        if any(texts):
            columns.append(text_column(column.head(comparison), texts))
    return columns


def _has_room_for_policies(comparison: Comparison, kind: TableKind) -> bool:
    """Tell whether a table names policies past T beside the verdicts. Otherwise `beyond_notes` do."""
    # In a paper the policies stand in the caption, where they are sentences.
    if kind is TableKind.PAPER:
        return False
    # The columns of recall take the width that the policies would need.
    return len(comparison.rows) == 1 or RECALL.of_table(comparison) is None


def _verdict_column(
    comparison: Comparison, column_indices: Sequence[int], *, with_policies: bool
) -> TableColumn:
    """Return the verdicts at the longest length, with unusual seed counts, failures, and policies past T."""
    if not column_indices:
        texts = ["; ".join(row.notes) for row in comparison.rows]
        return text_column("reason", texts, is_words=True)
    length = length_text(comparison.columns[column_indices[-1]].multiple)
    if has_curves(comparison):
        head = "breaks at"
    elif comparison.header.baseline is not None:
        head = f"at {length}"
    elif RECALL.of_table(comparison) is not None:
        head = "verdict"  # short, so that the recall fits beside it into 80 columns
    else:
        head = f"verdict at {length}"
    usual_seeds = _usual_seeds(comparison.rows)
    texts = []
    for row in comparison.rows:
        parts = [_verdict_word(comparison, row, row.cells[column_indices[-1]])]
        if with_policies and row.beyond:
            parts.append(f"beyond={row.beyond}")
        parts.append(_gap_text(row.cells[column_indices[-1]], usual_seeds))
        texts.append(", ".join(_non_empty(parts)))
    return text_column(head, texts, is_words=True)


def _usual_seeds(rows: Sequence[Row]) -> int:
    """Return how many seeds most rows have; of numbers that are as frequent the smallest."""
    seeds_of_rows = [max((cell.seeds for cell in row.cells), default=0) for row in rows]
    rows_with = Counter(seeds_of_rows)
    return min(rows_with, key=lambda seeds: (-rows_with[seeds], seeds))


def _gap_text(cell: Cell, usual_seeds: int) -> str:
    """Return why some runs of a cell have no number, or its number of seeds where it is unusual."""
    # Without a number its reason stands in the cell itself.
    if cell.mean is not None and cell.note:
        return cell.note
    if cell.seeds and cell.seeds != usual_seeds:
        return plural(cell.seeds, "seed")
    return ""


def _verdict_word(comparison: Comparison, row: Row, cell: Cell) -> str:
    """Return where the row breaks, how it compares with the baseline, or the verdict on its change."""
    if row.curve is not None:
        return breaks_text(row.curve)
    if comparison.header.baseline is not None:
        if cell.versus_baseline is not None:
            return cell.versus_baseline.word
        return "baseline" if row_label(row) == comparison.header.baseline else ""
    if all(any_row.undertrained for any_row in comparison.rows):
        return ""  # the answer of the report says it for all rows
    # The word replaces the verdict, which would be of a model that has little to lose.
    return "undertrained" if row.undertrained else cell.verdict_word


# --- everything


def _lengths_table(comparison: Comparison) -> Table:
    """Return a line for each row and length, with every column that has a number."""
    column_indices = shown_columns(comparison)
    cells = []
    heads = []
    for row in comparison.rows:
        for index in column_indices:
            cells.append((row, row.cells[index]))
            heads.append(_length_head(comparison.columns[index]))
    columns = [
        text_column("encoding", [row_label(row) for row, _ in cells]),
        text_column("context", heads),
    ]
    for line in _quantity_lines(comparison, cells):
        columns.append(text_column(line.head, line.texts, is_words=line.is_words))
    return Table(tuple(columns), f"by length, in {unit_text(comparison.header)}", n_keys=2)


def _rows_figures_table(comparison: Comparison) -> Table:
    """Return the figures of each row that are of no length: seeds, headroom, recall horizon."""
    columns = [names_column(comparison.rows)]
    for column in row_columns():
        if column.head is None:
            continue
        texts = [column.text(row) for row in comparison.rows]
        if any(texts):
            columns.append(text_column(column.head(comparison), [text or "-" for text in texts]))
    return Table(tuple(columns), "per row")
