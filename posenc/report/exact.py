"""Exact match in words and tables: how many seeds learned a task, and what share those get wholly right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posenc.core.errors import plural
from posenc.report.tables import Table, TableColumn, names_column, text_column
from posenc.report.texts import length_text, names_text
from posenc.results.beside.exact import EXACT, ExactCell, RowExact, Spread, TableExact
from posenc.results.comparison import Comparison, Row


def is_exact(comparison: Comparison) -> bool:
    """Tell whether the table counts whole answers of a task; it then shows no losses."""
    return EXACT.of_table(comparison) is not None


def _of_table(comparison: Comparison) -> TableExact:
    """Return the windows of a table that counts whole answers, and the level that a seed needs."""
    of_table = EXACT.of_table(comparison)
    assert of_table is not None
    return of_table


def exact_answer(comparison: Comparison) -> str:
    """Return `Most whole answers at 8x: rope (45%, 2 of 3 seeds). Did not learn within T: nope.`"""
    learned: list[Row] = []
    not_learned: list[Row] = []
    for row in comparison.rows:
        answers = EXACT.of(row)
        if answers is None:
            continue
        if answers.learned:
            learned.append(row)
        else:
            not_learned.append(row)
    level = f"{_of_table(comparison).level:g}%"
    if not learned:
        return f"No row learned the task: none has {level} of the answers wholly right in windows of T."
    sentences = [_best_sentence(comparison, learned)]
    if not_learned:
        sentences.append(f"Did not learn within T: {names_text(not_learned)}.")
    return " ".join(sentences)


def _best_sentence(comparison: Comparison, learned: Sequence[Row]) -> str:
    """Return `Most whole answers at 8x: rope (45%, 2 of 3 seeds).`

    It is of the longest window beyond T in which the median of a row is above 0. Rows that share the first
    place are all named.
    """
    multiples = _of_table(comparison).multiples
    beyond = [index for index, multiple in enumerate(multiples) if multiple > 1]
    shares_at = {index: _median_shares(learned, index) for index in beyond}
    measured = [index for index in beyond if shares_at[index]]
    if not measured:
        return "No row that learned the task was measured beyond T."
    # At 8x all medians are often 0 and everybody is the best. The answer is of the longest window that tells
    # rows apart.
    answered = [index for index in measured if any(share for share, _ in shares_at[index])]
    if not answered:
        return "No row that learned the task has whole answers beyond T (medians of its seeds)."
    longest = answered[-1]
    most = max(share for share, _ in shares_at[longest])
    best = [row for share, row in shares_at[longest] if share == most]
    answers_of_best = [answers for answers in map(EXACT.of, best) if answers is not None]
    seed_counts = dict.fromkeys(learned_text(answers) for answers in answers_of_best)
    details = [f"{percent(most)}%"]
    # Rows that share the first place may have learned with different numbers of seeds: then none is named.
    if len(seed_counts) == 1:
        details += seed_counts
    names = names_text(best)
    sentence = f"Most whole answers at {length_text(multiples[longest])}: {names} ({', '.join(details)})."
    if longest != measured[-1]:
        sentence += " In longer windows every median is 0%."
    return sentence


def _median_shares(rows: Sequence[Row], index: int) -> list[tuple[float, Row]]:
    """Return the median share of whole answers of each row that has one in the window with this index."""
    cells = [(_cell(row, index), row) for row in rows]
    return [(cell.whole.median, row) for cell, row in cells if cell is not None]


def _cell(row: Row, index: int) -> ExactCell | None:
    """Return the answers of a row in the window with this index; None without a number."""
    answers = EXACT.of(row)
    if answers is None or not answers.cells:
        return None
    return answers.cells[index]


def learned_text(answers: RowExact) -> str:
    """Return `2 of 3 seeds`."""
    return f"{answers.learned} of {plural(answers.seeds, 'seed')}"


def exact_notes(comparison: Comparison) -> list[str]:
    """Return notes on what the numbers of the table are."""
    rows = [answers for answers in map(EXACT.of, comparison.rows) if answers is not None]
    level = f"{_of_table(comparison).level:g}%"
    notes = [f"learned: seeds with {level} of the answers wholly right in windows of T"]
    number = "@: % of answers wholly right, of the seeds that learned"
    if any(row.seeds > 1 for row in rows):
        number += ": median [range]"
    cells = [cell for row in rows for cell in row.cells if cell is not None]
    if any(cell.whole.quartiles for cell in cells):
        number += "; from five seeds on [quartiles]"
    notes.append(number)
    if any(not row.learned for row in rows):
        notes.append("(in brackets): no seed learned, so the number is of all seeds")
    return notes


def exact_table(comparison: Comparison, *, full: bool = False) -> Table:
    """Return a line for each row: the seeds that learned, and whole answers by window.

    With `full` there are also the interval of the probability to learn, and the shares of right tokens.
    """
    rows = comparison.rows
    columns = [
        names_column(rows),
        text_column("learned", [_learned_cell(EXACT.of(row), full=full) for row in rows]),
    ]
    for index, multiple in enumerate(_of_table(comparison).multiples):
        texts = [_whole_text(row, index) for row in rows]
        # Windows below T say only whether the task was learned, which has a column already.
        may_be_dropped = multiple < 1 and not full  # where the table is too wide
        rank = index if may_be_dropped else None
        columns.append(text_column(f"@{length_text(multiple)}", texts, drop_rank=rank))
    if full:
        # Right tokens are in --full alone: a share of 90% of right tokens may be not one right answer.
        columns += _token_columns(comparison, "tokens", lambda cell: cell.tokens)
        if any(_has_generated(row) for row in rows):
            columns += _token_columns(comparison, "own tokens", lambda cell: cell.generated_tokens)
    return Table(tuple(columns), "whole answers, %")


def _learned_cell(answers: RowExact | None, *, full: bool) -> str:
    if answers is None:
        return "-"
    text = f"{answers.learned}/{answers.seeds}"
    if not full:
        return text
    low, high = answers.learned_ci95
    return f"{text} [{percent(low)}, {percent(high)}]%"


def _whole_text(row: Row, index: int) -> str:
    """Return the whole answers of a row in a window, in brackets if no seed learned; `-` without a number."""
    answers = EXACT.of(row)
    cell = _cell(row, index)
    if answers is None or cell is None:
        return "-"
    text = spread_text(cell.whole)
    return text if answers.learned else f"({text})"


def _token_columns(
    comparison: Comparison, name: str, spread_of: Callable[[ExactCell], Spread | None]
) -> list[TableColumn]:
    """Return a column of right tokens for each window."""
    columns = []
    for index, multiple in enumerate(_of_table(comparison).multiples):
        texts = []
        for row in comparison.rows:
            cell = _cell(row, index)
            spread = None if cell is None else spread_of(cell)
            texts.append("-" if spread is None else spread_text(spread))
        columns.append(text_column(f"{name}@{length_text(multiple)}", texts))
    return columns


def _has_generated(row: Row) -> bool:
    answers = EXACT.of(row)
    if answers is None:
        return False
    return any(cell is not None and cell.generated_tokens is not None for cell in answers.cells)


def spread_text(spread: Spread) -> str:
    """Return `45 [12, 80]` in per cent; the number alone where all seeds agree."""
    text = percent(spread.median)
    # The range of many seeds is that of the two oddest. Quartiles say where half of them are.
    low, high = spread.quartiles or (spread.low, spread.high)
    # By the printed digits: `45 [45, 45]` would look like a measured agreement.
    if percent(low) == percent(high):
        return text
    return f"{text} [{percent(low)}, {percent(high)}]"


def percent(share: float) -> str:
    """Return a share in whole per cent; 100 and 0 are said only of all and of nothing."""
    rounded = round(100 * share)
    if rounded == 100 and share < 1:
        return ">99"
    if rounded == 0 and share > 0:
        return "<1"
    return str(rounded)
