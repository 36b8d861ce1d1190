"""Make a sentence of rows and the word for each: `At 8x alibi is unclear; the other 5 collapse.`"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posenc.report.texts import names_text
from posenc.results.rows import Row
from posenc.results.statistics.verdicts import BETTER_WORD, COLLAPSED_WORD, SAME_WORD, WORSE_WORD


@dataclass(frozen=True)
class Verb:
    """The verb of a sentence about one row, and about several."""

    one: str
    several: str


# word for a row -> verb, in the order of the clauses of a sentence
VERBS = {
    BETTER_WORD: Verb("gains", "gain"),
    SAME_WORD: Verb("keeps its loss", "keep their loss"),
    "below": Verb("is lower", "are lower"),
    "tied": Verb("is tied", "are tied"),
    "unresolved": Verb("is unresolved", "are unresolved"),
    "no break": Verb("does not break", "do not break"),
    "unclear": Verb("is unclear", "are unclear"),
    "above": Verb("is higher", "are higher"),
    WORSE_WORD: Verb("gets worse", "get worse"),
    COLLAPSED_WORD: Verb("collapses", "collapse"),
    "breaks": Verb("breaks", "break"),
    "": Verb("has no verdict", "have no verdict"),
}


def rows_by_word(
    start: str, rows_and_words: Sequence[tuple[Row, str]], notes: Mapping[str, str] | None = None
) -> str:
    """Return a sentence with a clause for the rows of each word; empty without a word.

    `notes` are texts behind the verb, by word.
    """
    notes = notes or {}
    rows_of: dict[str, list[Row]] = {}
    for word in VERBS:
        rows = [row for row, word_of_row in rows_and_words if word_of_row == word]
        if rows:
            rows_of[word] = rows
    # The word of rows without a verdict is the empty text, so this also holds where no row has a verdict.
    if not any(rows_of):
        return ""
    if len(rows_of) == 1 and len(rows_and_words) > 1:
        (word,) = rows_of
        return f"{start} all {VERBS[word].several}{notes.get(word, '')}."
    clauses: list[str] = []
    for word, rows in rows_of.items():
        verb = VERBS[word].one if len(rows) == 1 else VERBS[word].several
        # The last group is counted in place of named. By the order of VERBS it is the one that does worst.
        is_last = len(clauses) == len(rows_of) - 1
        subject = f"the other {len(rows)}" if is_last and len(rows) > 1 else names_text(rows)
        clauses.append(f"{subject} {verb}{notes.get(word, '')}")
    return f"{start} {'; '.join(clauses)}."
