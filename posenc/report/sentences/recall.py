"""Put the recall of rows into words."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.core.quantities import length_text
from posenc.report.cell_texts import horizon_text
from posenc.report.protocol_words import planted_noun
from posenc.report.sentences.settling import Rival, what_settles
from posenc.report.texts import MOST_NAMED, learning_text, names_text, percent_text, row_label
from posenc.results.beside.recall import (
    RECALL,
    did_not_learn_to_recall,
    farthest_recall_of,
    learning_of,
)
from posenc.results.beside.recall_cells import RecallCell
from posenc.results.comparison import Comparison
from posenc.results.rows import Row

# That draw found 25% with a model of which others found 12, 14 and 15% (docs/reading-the-numbers.md), so it
# is named.
FIXED_DRAW = "runs of before 0.2 share one fixed draw of windows"


def has_several_recall_seeds(comparison: Comparison) -> bool:
    """Tell whether a row has recall of several seeds, so that some of them may not have learned it."""
    learning_of_rows = [learning_of(row) for row in comparison.rows]
    return any(learning is not None and learning.seeds > 1 for learning in learning_of_rows)


def recall_answer(comparison: Comparison) -> str:
    """Return `Highest recall at 8x: hard_alibi (98%; tied: fire). Did not learn to recall: nope.`"""
    table_recall = RECALL.of_table(comparison)
    if table_recall is None:
        return ""
    ranks = ""
    if table_recall.multiples:
        ranks = _recall_ranks(comparison.rows, length_text(table_recall.multiples[-1]))
    sentences = [
        ranks,
        _partial_learning(comparison.rows),
        _recall_failures(comparison.rows),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _recall_ranks(rows: Sequence[Row], length: str) -> str:
    # A row that did not learn the task is not named among the highest, whatever it finds: guessing finds
    # something, too.
    learned: list[tuple[Row, RecallCell]] = []
    for row in rows:
        recall = RECALL.of(row)
        farthest = recall.beyond[-1] if recall is not None and recall.learned else None
        if farthest is not None:
            learned.append((row, farthest))
    if not learned:
        return ""
    learned.sort(key=lambda pair: -pair[1].accuracy)
    # A row with a single seed among rows with several is not ranked, however high it is.
    ranked_best = next(((row, cell) for row, cell in learned if cell.rank == "best"), None)
    if ranked_best is None:  # nothing is ranked, so it gives the numbers alone
        texts = [f"{row_label(row)} {percent_text(cell)}" for row, cell in learned[:MOST_NAMED]]
        return f"Recall at {length}: {', '.join(texts)}."
    best_row, best = ranked_best
    tied = [row for row, cell in learned if cell.rank == "tied"]
    unresolved = [(row, cell) for row, cell in learned if cell.rank == "unresolved"]
    number = percent_text(best)
    if tied:
        number += f"; tied: {names_text(tied, 'others')}"
    sentence = f"Highest recall at {length}: {row_label(best_row)} ({number})."
    highest_row, highest = learned[0]
    # Without these words the sentence would contradict the column, in which a reader sees the higher number.
    if highest.accuracy > best.accuracy:
        not_ranked = f"{row_label(highest_row)} has {percent_text(highest)} and is not ranked"
        sentence = f"Highest ranked recall at {length}: {row_label(best_row)} ({number}); {not_ranked}."
    if not unresolved:
        return sentence
    rivals = [Rival.of_recall(row, cell) for row, cell in [(best_row, best), *unresolved]]
    names = names_text(row for row, _ in unresolved)
    return f"{sentence} Recall unresolved: {names} ({what_settles(rivals)})."


def _partial_learning(rows: Sequence[Row]) -> str:
    """Return `Learned to recall with some seeds only: cable (4 of 5).`; empty without such rows."""
    partial: list[Row] = []
    names: list[str] = []
    for row in rows:
        learning = learning_of(row)
        if learning is not None and 0 < learning.learned < learning.seeds:
            partial.append(row)
            names.append(f"{row_label(row)} ({learning_text(learning)})")
    if not partial:
        return ""
    subject = names_text(partial) if len(partial) > MOST_NAMED else ", ".join(names)
    return f"Learned to recall with some seeds only: {subject}."


def _recall_failures(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if RECALL.of(row) is not None]
    failed = [row for row in rows if did_not_learn_to_recall(row)]
    if not failed:
        return ""
    if len(failed) == len(measured) > 1:
        return "No row learned to recall."
    return f"Did not learn to recall: {names_text(failed)}."


def recall_line(comparison: Comparison) -> str:
    """Return `recall: 97% within T, 62% at 2x, 5% at 8x; horizon 3.5x` of the only row; empty without it."""
    recall = RECALL.of(comparison.rows[0])
    table_recall = RECALL.of_table(comparison)
    if recall is None or table_recall is None or recall.within is None:
        return ""
    within = f"{percent_text(recall.within)} within T"
    if recall.learned is False:  # None: recall was measured with an extension alone
        return f"recall: did not learn, {within} (below {table_recall.level:g}%)"
    if recall.learning is not None and recall.learning.seeds > 1:
        # The mean is of these seeds alone, so that the sentence must not let it stand for all.
        within = f"{learning_text(recall.learning)} seeds learned; these find {within}"
    parts = [within]
    for multiple, cell in zip(table_recall.multiples, recall.beyond, strict=True):
        if cell is not None:
            parts.append(f"{percent_text(cell)} at {length_text(multiple)}")
    return f"recall: {', '.join(parts)}; horizon {horizon_text(recall)}"


def recall_note(comparison: Comparison, with_interval: bool) -> str:
    """Return the note on the columns of recall; empty without them."""
    table_recall = RECALL.of_table(comparison)
    if table_recall is None:
        return ""
    noun = planted_noun(table_recall.kind)
    note = f"recall@: % of {noun} found within T, then the farthest"
    if has_several_recall_seeds(comparison):
        seeds = f"learned: seeds that find {table_recall.level:g}% of the {noun} within T"
        longest = length_text(table_recall.multiples[-1])
        note = f"{seeds}; @{longest}: % that these find at the farthest distance"
    # Without the level of a guess, 6% of sixteen values looks like a little memory.
    if table_recall.guess is not None:
        note += f" (a guess: {table_recall.guess:.0f}%)"
    if any(did_not_learn_to_recall(row) for row in comparison.rows):
        note += "; (did not learn)"
    if with_interval:
        note += ", each with its 95% CI"
    if table_recall.has_fixed_draw:
        note += f"; {FIXED_DRAW}"
    return note


def rows_of_unresolved_recall(comparison: Comparison) -> list[Row]:
    """Return the rows whose recall in the longest window is not told apart from the highest."""
    return [row for row, cell in farthest_recalls(comparison) if cell.rank == "unresolved"]


def farthest_recalls(comparison: Comparison) -> list[tuple[Row, RecallCell]]:
    """Return each row with its recall in the longest window, whose ranks are in the tables."""
    recalls = []
    for row in comparison.rows:
        farthest = farthest_recall_of(row)
        if farthest is not None:
            recalls.append((row, farthest))
    return recalls
