"""Answer a comparison in one sentence or a few."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.core.errors import plural, visible
from posenc.core.quantities import length_text
from posenc.report.cell_texts import breaks_text, has_curves
from posenc.report.sentences.clauses import VERBS, rows_by_word
from posenc.report.sentences.exact import exact_answer, is_exact
from posenc.report.sentences.recall import recall_answer
from posenc.report.sentences.settling import ENOUGH_SEEDS, Rival, what_settles
from posenc.report.sentences.shared import (
    NOTHING_BEYOND_SHOWN,
    OF_SEVERAL_SEEDS,
    all_cells,
    has_unigram_reference,
    is_below_best,
    is_recall_only,
    length_name,
    lengths_by_names,
    shown_columns,
)
from posenc.report.texts import names_text, row_label
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison
from posenc.results.headers import Header
from posenc.results.numbers import printed_change
from posenc.results.rows import Row

NOTHING_YET = "No run has a number yet."
NO_BYTES = "The targets have no bytes, so no loss is in bits per byte (--metric nats)."
UNITS_OF_CHANGES = {"nats": "nats", "bpb": "bits/byte", "ppl": "in perplexity"}


def answer(comparison: Comparison) -> str:
    """Return the answer of the comparison, in one sentence or a few."""
    rows = comparison.rows
    # Before the losses, which these tables do not show: their targets have no bytes, so that with --metric
    # bpb there is no loss, and still a number.
    if is_recall_only(comparison):
        return recall_answer(comparison) or "Recall was not measured past T."
    if is_exact(comparison):
        return exact_answer(comparison)
    column_indices = shown_columns(comparison)
    has_numbers = any(cell.mean is not None for cell in all_cells(comparison))
    if not column_indices or not has_numbers:
        return NO_BYTES if _has_no_bytes(comparison) else NOTHING_YET
    # Before the baseline: curves have no ranks, so that a baseline has nothing to be compared with.
    if has_curves(comparison):
        return _break_answer(rows)
    if comparison.header.baseline is not None:
        return _baseline_answer(comparison, column_indices[-1])
    if len(rows) == 1:
        return _row_answer(rows[0], comparison.header)
    sentences = [
        _undertrained_answer(comparison),
        *_rank_answers(comparison, column_indices),
        _verdict_answer(comparison, column_indices[-1]),
        recall_answer(comparison),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _has_no_bytes(comparison: Comparison) -> bool:
    """Tell whether losses in nats were measured, on targets that cannot have any in bits per byte."""
    if comparison.header.metric != "bpb":
        return False
    members = [member for row in comparison.rows for member in row.members]
    measurements = [measurement for member in members for measurement in member.measurements]
    return any(measurement.nats is not None for measurement in measurements)


def _break_answer(rows: Sequence[Row]) -> str:
    """Return `Past T alibi does not break; rope breaks.`"""
    rows_and_words = []
    for row in rows:
        if row.curve is None:
            continue
        text = breaks_text(row.curve)
        if len(rows) == 1 and text not in VERBS:
            return f"Past T {row_label(row)} breaks at {text}."
        # A position has no verb of its own. In a sentence about several rows it would make one clause for
        # each.
        rows_and_words.append((row, text if text in VERBS else "breaks"))
    return rows_by_word("Past T", rows_and_words)


def _baseline_answer(comparison: Comparison, last: int) -> str:
    """Return `Against nope at 8x alibi is lower; t5 is higher.`"""
    length = length_text(comparison.columns[last].multiple)
    start = f"Against {visible(comparison.header.baseline)} at {length}"
    rows_and_words = []
    rivals = []
    for row in comparison.rows:
        versus = row.cells[last].versus_baseline
        if versus is not None:
            rows_and_words.append((row, str(versus.word)))
        # The baseline is a rival, too: it may be the row with too few seeds.
        is_baseline = row_label(row) == comparison.header.baseline
        if is_baseline or (versus is not None and versus.word == "unresolved"):
            rivals.append(Rival.of_losses(row, row.cells[last], versus))
    note = f" ({what_settles(rivals)})"
    sentence = rows_by_word(start, rows_and_words, {"unresolved": note})
    return sentence or f"{start}: no row can be compared with it."


def _row_answer(row: Row, header: Header) -> str:
    """Return `Collapses at 8x: +1.20 nats at 2x, +2.44 at 8x; breaks at 1.44x.`"""
    metric = header.metric
    # Nothing else is said of such a row: a model that has learned little loses little past T
    # (docs/reading-the-numbers.md, 3).
    if row.undertrained:
        reference = "a byte trigram"
        if has_unigram_reference(header):
            reference = "the frequencies of the text's tokens"
        problem = f"Undertrained{_for_which_text(header)}"
        return f"{problem}: at T not below {reference}, so changes past T say little."
    past = [cell for cell in row.cells if cell.multiple > 1 and cell.change is not None]
    if not past:
        return NOTHING_BEYOND_SHOWN if header.columns_left_out else "Not measured past T."
    first = past[0]
    last = past[-1]
    clauses = [f"{_short_change(first, metric)} {UNITS_OF_CHANGES[metric]} at {length_text(first.multiple)}"]
    if last is not first:
        clauses.append(f"{_short_change(last, metric)} at {length_text(last.multiple)}")
    sentence = f"{_outcome(last)} at {length_text(last.multiple)}: {', '.join(clauses)}"
    if last.verdict is not None and last.verdict.needs is not None:
        sentence += f"; more {last.verdict.needs} would help"
    if row.breaks is not None and any(row.breaks.breaks_at):
        sentence += f"; breaks at {breaks_text(row.breaks)}"
    return f"{sentence}."


def _outcome(cell: Cell) -> str:
    verb = VERBS[cell.verdict_word]
    return verb.one.capitalize()


def _short_change(cell: Cell, metric: str) -> str:
    """Return a change in two digits, a small one in three."""
    change = cell.change or 0.0
    return f"{change:+.2f}" if 0.1 <= abs(change) < 1000 else printed_change(change, metric)


def _undertrained_answer(comparison: Comparison) -> str:
    undertrained = [row for row in comparison.rows if row.undertrained]
    for_which_text = _for_which_text(comparison.header)
    if not undertrained:
        return ""
    if len(undertrained) == len(comparison.rows):
        return f"All runs undertrained{for_which_text}."
    return f"Undertrained{for_which_text}: {names_text(undertrained)}."


def _for_which_text(header: Header) -> str:
    """Return ` for this text` if the models were trained on another one."""
    return " for this text" if has_unigram_reference(header) else ""


def _rank_answers(comparison: Comparison, column_indices: Sequence[int]) -> list[str]:
    """Return `Lowest loss at T: rope (tied: fox).`, the same at the longest window, and what is unresolved.

    If the rows are the same at T and at the longest window, one sentence says both: `Lowest loss at T and 8x:
    alibi.`
    """
    at_t = [index for index in column_indices if comparison.columns[index].multiple == 1]
    # Where no window is longer than T, both ends are the same column.
    ends = list(dict.fromkeys([*at_t, column_indices[-1]]))
    lowest_at = []  # the names of rows, with a length
    for index in ends:
        best = _rows_of_rank(comparison.rows, index, "best")
        tied = _rows_of_rank(comparison.rows, index, "tied")
        if not best:
            continue
        details = []
        # Otherwise the sentence would contradict the column, in which a reader sees a lower number.
        if any(is_below_best(row.cells[index].versus_best) for row in comparison.rows):
            details.append(OF_SEVERAL_SEEDS)
        if tied:
            details.append(f"tied: {names_text(tied, 'others')}")
        text = names_text(best)
        if details:
            text += f" ({'; '.join(details)})"
        lowest_at.append((text, length_name(comparison, index)))
    sentences = [
        f"Lowest loss at {lengths}: {text}." for text, lengths in lengths_by_names(lowest_at).items()
    ]
    return [*sentences, _unresolved_answer(comparison, ends)]


def _unresolved_answer(comparison: Comparison, indices: Sequence[int]) -> str:
    """Return `Unresolved at T: learned; at 8x: nope (2 seeds: add seed=2).`; empty if nothing is."""
    unresolved_at = []  # the names of rows, with a length
    rivals = []
    for index in indices:
        unresolved = _rows_of_rank(comparison.rows, index, "unresolved")
        if not unresolved:
            continue
        unresolved_at.append((names_text(unresolved), length_name(comparison, index)))
        # The best row counts as well: it may be the one with too few seeds.
        for row in [*_rows_of_rank(comparison.rows, index, "best"), *unresolved]:
            cell = row.cells[index]
            rivals.append(Rival.of_losses(row, cell, cell.versus_best))
    if not unresolved_at:
        return ""
    clauses = [f"at {lengths}: {names}" for names, lengths in lengths_by_names(unresolved_at).items()]
    return f"Unresolved {'; '.join(clauses)} ({what_settles(rivals)})."


def _rows_of_rank(rows: Sequence[Row], index: int, word: str) -> list[Row]:
    ranked = []
    for row in rows:
        versus = row.cells[index].versus_best
        if versus is not None and versus.word == word:
            ranked.append(row)
    return ranked


def _verdict_answer(comparison: Comparison, last: int) -> str:
    """Return `At 8x alibi is unclear; the other 5 collapse.`

    If some rows have ENOUGH_SEEDS seeds, those with fewer are not counted.
    """
    multiple = comparison.columns[last].multiple
    if multiple <= 1:
        return ""
    trained = [row for row in comparison.rows if not row.undertrained]
    # One seed of each encoding ranks what five do not (docs/reading-the-numbers.md), so that such rows are
    # not counted together with rows of three seeds.
    counted = [row for row in trained if row.cells[last].seeds >= ENOUGH_SEEDS] or trained
    rows_and_words = [(row, row.cells[last].verdict_word) for row in counted]
    start = f"At {length_text(multiple)}"
    if len(counted) < len(trained):
        start += f", of {plural(len(counted), 'row')} with {ENOUGH_SEEDS} or more seeds,"
    return rows_by_word(start, rows_and_words)
