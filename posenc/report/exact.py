"""Exact match in words and tables: how many seeds learned a task, and what share those get wholly right."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.report.tables import Table, TableCell, TableColumn, text_column
from posenc.report.texts import length_text, names_text, row_label
from posenc.results.comparison import Comparison, Row
from posenc.results.exact import ExactCell, RowExact, Spread


def is_exact(comparison: Comparison) -> bool:
    """Return whether the table counts whole answers of a task, and shows no losses."""
    return comparison.exact is not None


def exact_answer(comparison: Comparison) -> str:
    """Return `3 of 4 encodings learned it within T. Most whole answers at 8x: rope (45%, 2 of 3 seeds).`"""
    assert comparison.exact is not None
    answered = [row for row in comparison.rows if row.exact is not None]
    learned = [row for row in answered if row.exact is not None and row.exact.learned]
    level = f"{comparison.exact.level:g}%"
    if not learned:
        return f"No row learned the task: none has {level} of the answers wholly right in windows of T."
    weak = [row for row in answered if row not in learned]
    sentences = [_best_sentence(comparison, learned)]
    if weak:
        sentences.append(f"Did not learn within T: {names_text(weak)}.")
    return " ".join(sentences)


def _best_sentence(comparison: Comparison, learned: Sequence[Row]) -> str:
    """Return the row with the most whole answers in the longest window."""
    assert comparison.exact is not None
    numbers = []
    for row in learned:
        cell = _last_cell(row)
        if cell is not None:
            numbers.append((cell.whole.median, row))
    if not numbers:
        return "The longest windows have no number."
    share, best = max(numbers, key=lambda number: number[0])
    assert best.exact is not None
    length = length_text(comparison.exact.multiples[-1])
    return (
        f"Most whole answers at {length}: {row_label(best)} ({percent(share)}%, {learned_text(best.exact)})."
    )


def _last_cell(row: Row) -> ExactCell | None:
    return None if row.exact is None or not row.exact.cells else row.exact.cells[-1]


def learned_text(answers: RowExact) -> str:
    """Return `2 of 3 seeds`."""
    noun = "seed" if answers.seeds == 1 else "seeds"
    return f"{answers.learned} of {answers.seeds} {noun}"


def exact_notes(comparison: Comparison) -> list[str]:
    """Return what the numbers of the table are, a line each."""
    assert comparison.exact is not None
    rows = [row.exact for row in comparison.rows if row.exact is not None]
    level = f"{comparison.exact.level:g}%"
    notes = [f"learned: seeds with {level} of the answers wholly right in windows of T"]
    number = "@: % of answers wholly right, of the seeds that learned"
    if any(row.seeds > 1 for row in rows):
        number += ": median [range]"
    if any(cell.whole.quartiles for row in rows for cell in row.cells if cell is not None):
        number += "; with five seeds [quartiles]"
    notes.append(number)
    if any(not row.learned for row in rows):
        notes.append("(in brackets: no seed learned, so of all seeds)")
    return notes


def exact_table(comparison: Comparison, *, full: bool = False) -> Table:
    """Return a line for each row: the seeds that learned, and whole answers by window.

    With `full` there are also the interval of the chance to learn, and the right tokens.
    """
    assert comparison.exact is not None
    rows = comparison.rows
    names = text_column("encoding", [row_label(row) for row in rows])
    columns = [names, text_column("learned", [_learned_cell(row.exact, full=full) for row in rows])]
    multiples = comparison.exact.multiples
    for index, multiple in enumerate(multiples):
        is_short = multiple < 1
        texts = [_whole_text(row.exact, index) for row in rows]
        rank = index if is_short and not full else None
        columns.append(text_column(f"@{length_text(multiple)}", texts, drop_rank=rank))
    if full:
        columns += [_tokens_column(comparison, index) for index in range(len(multiples))]
        if any(_has_generated(row) for row in rows):
            columns += [_generated_column(comparison, index) for index in range(len(multiples))]
    return Table(tuple(columns), "whole answers, %")


def _learned_cell(answers: RowExact | None, *, full: bool) -> str:
    if answers is None:
        return "-"
    text = f"{answers.learned}/{answers.seeds}"
    if not full:
        return text
    low, high = answers.learned_ci95
    return f"{text} [{percent(low)}, {percent(high)}]%"


def _whole_text(answers: RowExact | None, index: int) -> str:
    cell = None if answers is None else answers.cells[index]
    if answers is None or cell is None:
        return "-"
    text = spread_text(cell.whole)
    return text if answers.learned else f"({text})"


def _tokens_column(comparison: Comparison, index: int) -> TableColumn:
    """Return the column of right tokens in a window."""
    assert comparison.exact is not None
    cells = []
    for row in comparison.rows:
        cell = None if row.exact is None else row.exact.cells[index]
        cells.append(TableCell("-" if cell is None else spread_text(cell.tokens)))
    return TableColumn(f"tokens@{length_text(comparison.exact.multiples[index])}", tuple(cells))


def _generated_column(comparison: Comparison, index: int) -> TableColumn:
    """Return the column of right tokens in a window, going on from the model's own."""
    assert comparison.exact is not None
    cells = []
    for row in comparison.rows:
        cell = None if row.exact is None else row.exact.cells[index]
        generated = None if cell is None else cell.generated_tokens
        cells.append(TableCell("-" if generated is None else spread_text(generated)))
    return TableColumn(f"own tokens@{length_text(comparison.exact.multiples[index])}", tuple(cells))


def _has_generated(row: Row) -> bool:
    if row.exact is None:
        return False
    return any(cell is not None and cell.generated_tokens is not None for cell in row.exact.cells)


def spread_text(spread: Spread) -> str:
    """Return `45 [12, 80]` in per cent; the number alone where all seeds agree."""
    text = percent(spread.median)
    low, high = spread.quartiles or (spread.low, spread.high)
    if percent(low) == percent(high):
        return text
    return f"{text} [{percent(low)}, {percent(high)}]"


def percent(share: float) -> str:
    """Return a share in whole per cent; all and nothing are said only where they are exact."""
    rounded = round(100 * share)
    if rounded == 100 and share < 1:
        return ">99"
    if rounded == 0 and share > 0:
        return "<1"
    return str(rounded)
