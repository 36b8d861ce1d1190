"""Put exact match into words: how many seeds learned a task, and what share those get wholly right."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.core.quantities import length_text
from posenc.report.sentences.shared import NOTHING_BEYOND_SHOWN
from posenc.report.texts import learned_of_seeds, names_text, whole_percent
from posenc.results.beside.exact import EXACT, ExactCell, TableExact
from posenc.results.comparison import Comparison
from posenc.results.rows import Row


def is_exact(comparison: Comparison) -> bool:
    """Tell whether the table counts whole answers of a task; it then shows no losses."""
    return EXACT.of_table(comparison) is not None


def table_answers(comparison: Comparison) -> TableExact:
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
    level = f"{table_answers(comparison).level:g}%"
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
    multiples = table_answers(comparison).multiples
    beyond = [index for index, multiple in enumerate(multiples) if multiple > 1]
    shares_at = {index: _median_shares(learned, index) for index in beyond}
    measured = [index for index in beyond if shares_at[index]]
    if not measured:
        # The user may have chosen columns without those beyond T.
        is_hidden = comparison.header.columns_left_out
        return NOTHING_BEYOND_SHOWN if is_hidden else "No row that learned the task was measured beyond T."
    # At 8x all medians are often 0 and everybody is the best. The answer is of the longest window that tells
    # rows apart.
    answered = [index for index in measured if any(share for share, _ in shares_at[index])]
    if not answered:
        where = "beyond T"
        if comparison.header.columns_left_out:  # what is not shown may have whole answers
            where = f"at {', '.join(length_text(multiples[index]) for index in measured)}"
        return f"No row that learned the task has whole answers {where} (medians of its seeds)."
    longest = answered[-1]
    most = max(share for share, _ in shares_at[longest])
    best = [row for share, row in shares_at[longest] if share == most]
    answers_of_best = [answers for answers in map(EXACT.of, best) if answers is not None]
    seed_counts = dict.fromkeys(learned_of_seeds(answers) for answers in answers_of_best)
    details = [f"{whole_percent(most)}%"]
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
    cells = [(answers_in_window(row, index), row) for row in rows]
    return [(cell.whole.median, row) for cell, row in cells if cell is not None]


def answers_in_window(row: Row, index: int) -> ExactCell | None:
    """Return the answers of a row in the window with this index; None without a number."""
    answers = EXACT.of(row)
    if answers is None or not answers.cells:
        return None
    return answers.cells[index]


def exact_notes(comparison: Comparison) -> list[str]:
    """Return notes on what the numbers of the table are."""
    rows = [answers for answers in map(EXACT.of, comparison.rows) if answers is not None]
    level = f"{table_answers(comparison).level:g}%"
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
