"""Put a comparison into words, as plain text: its facts, the answer, and the notes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posenc.core.errors import plural, visible
from posenc.report.cell_texts import (
    breaks_text,
    horizon_text,
    rank_of_number,
    recovered_with_interval,
)
from posenc.report.exact import exact_answer, is_exact
from posenc.report.protocol_words import note_of, planted_noun, sample_noun, why_loss_changes
from posenc.report.tables import BEST, TIED
from posenc.report.texts import (
    MOST_NAMED,
    count_text,
    learning_text,
    length_text,
    names_text,
    percent_text,
    row_label,
    share_text,
    span_text,
    token_noun,
    unit_text,
)
from posenc.results.beside.dispersion import DISPERSION, Reason, RowDispersion
from posenc.results.beside.recall import (
    RECALL,
    SAME_RECALL,
    RecallCell,
    did_not_learn_to_recall,
    farthest_recall_of,
    learning_of,
)
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison, Header, Row
from posenc.results.identity import condition_text
from posenc.results.measurements import OTHER_KNOBS, OTHER_TARGETS
from posenc.results.numbers import printed_change
from posenc.results.records import HEADLINE
from posenc.results.runs import encoding_name
from posenc.results.statistics.ranking import Versus
from posenc.results.statistics.verdicts import BETTER_WORD as BETTER
from posenc.results.statistics.verdicts import COLLAPSED_WORD, SAME_MARGIN, SAME_WORD, short_verdict
from posenc.results.statistics.verdicts import WORSE_WORD as WORSE

FIXED_DRAW = "runs of before 0.2 share one fixed draw of windows"
NOTHING_YET = "No run has a number yet."
# Conditions that tell tables apart, but that the facts name in another place.
IN_FACTS = {
    "context length",
    "context_length",
    "T",
    "tokens trained",
    "tokens",
    "split",
    "stride",
    "seed",
    "evaluated in",
}
# A row is advised to have at least so many seeds; a row that has them is advised to have one more.
ENOUGH_SEEDS = 3
MORE_WINDOWS = 4  # times as many windows of recall: they halve an interval
UNITS_OF_CHANGES = {"nats": "nats", "bpb": "bits/byte", "ppl": "in perplexity"}


@dataclass(frozen=True)
class Verb:
    """The verb of a sentence about one row, and about several."""

    one: str
    several: str


# word for a row -> verb, in the order of the clauses of a sentence
VERBS = {
    BETTER: Verb("gains", "gain"),
    SAME_WORD: Verb("keeps its loss", "keep their loss"),
    "below": Verb("is lower", "are lower"),
    "tied": Verb("is tied", "are tied"),
    "unresolved": Verb("is unresolved", "are unresolved"),
    "no break": Verb("does not break", "do not break"),
    "unclear": Verb("is unclear", "are unclear"),
    "above": Verb("is higher", "are higher"),
    WORSE: Verb("gets worse", "get worse"),
    COLLAPSED_WORD: Verb("collapses", "collapse"),
    "breaks": Verb("breaks", "break"),
    "": Verb("has no verdict", "have no verdict"),
}


def shown_columns(comparison: Comparison) -> list[int]:
    """Return the indices of the columns that tables show."""
    return [index for index, column in enumerate(comparison.columns) if column.shown]


def is_recall_only(comparison: Comparison) -> bool:
    """Return whether the table has recall and no losses."""
    return comparison.header.protocol == RECALL.protocol and RECALL.columns(comparison) is not None


def _all_cells(comparison: Comparison) -> list[Cell]:
    return [cell for row in comparison.rows for cell in row.cells]


# --- the facts


def facts_of(comparison: Comparison) -> list[str]:
    """Return the facts above a table: `6 encodings`, `3 seeds`, `nano 0.82M`, `T = 64 bytes`, `sympy`, ..."""
    header = comparison.header
    if len(comparison.rows) == 1:
        rows = [row_label(comparison.rows[0]), *_settings(comparison), _seeds(comparison)]
    else:
        rows = [_count_of_rows(comparison), _seeds(comparison), *_settings(comparison)]
    precision = "/".join(header.precisions)
    evaluated_in = f"evaluated in {header.evaluated_in}" if header.evaluated_in else ""
    facts = [*_group_facts(header), protocol_fact(header), *rows, precision, evaluated_in]
    return [visible(fact) for fact in facts if fact]


def _group_facts(header: Header) -> list[str]:
    """Return what tells the table from the others, but for what another fact says."""
    said_elsewhere = set(IN_FACTS)
    if header.group.get("evaluated on") == header.group.get("corpus"):
        said_elsewhere.add("evaluated on")
    if header.group.get("model") == encoding_name(header.model):
        said_elsewhere.add("model")
    return [condition_text(key, value) for key, value in header.group.items() if key not in said_elsewhere]


def protocol_fact(header: Header) -> str:
    """Return the protocol with its stride; empty for the headline."""
    if header.protocol == HEADLINE:
        return ""
    if header.stride is None:
        return header.protocol
    return f"{header.protocol}, stride {header.stride}"


def _count_of_rows(comparison: Comparison) -> str:
    rows = comparison.rows
    encodings = {row.encoding for row in rows}
    noun = "encodings" if len(encodings) == len(rows) else "rows"
    return f"{len(rows)} {noun}"


def _seeds(comparison: Comparison) -> str:
    header = comparison.header
    if len(header.seeds) == 1:
        return f"seed {header.seeds[0]}"
    counts = sorted({cell.seeds for cell in _all_cells(comparison) if cell.seeds})
    if not counts:
        return ""
    return "1 seed" if counts == [1] else f"{span_text(counts)} seeds"


def _settings(comparison: Comparison) -> list[str]:
    """Return model, T, corpus, tokens and tuning of the runs; a text is empty where the runs differ."""
    header = comparison.header
    length = ""
    if header.context_length:
        length = f"T = {header.context_length} {token_noun(header)}s"
    tokens = "" if header.tokens is None else f"{count_text(header.tokens)} tokens"
    return [_model(header), length, _corpus(header), tokens, _tuned(comparison.rows)]


def _corpus(header: Header) -> str:
    if not header.corpus:
        return ""
    details = []
    if header.trained_on is not None:
        details.append(f"trained on {header.trained_on}")
    if header.split not in (None, "test"):
        details.append(header.split)
    return f"{header.corpus} ({', '.join(details)})" if details else header.corpus


def _tuned(rows: Sequence[Row]) -> str:
    tuned = [row for row in rows if row.tuned]
    if not tuned:
        return ""
    if len(tuned) == len(rows):
        return "learning rate tuned"
    return f"learning rate of {names_text(tuned)} tuned"


def _model(header: Header) -> str:
    """Return `nano 0.82M`, with the range of sizes where the rows differ."""
    name = encoding_name(header.model) or ""
    if header.parameters is None:
        return name
    fewest, most = header.parameters
    digits = 2 if fewest == most else 1
    sizes = []
    for parameters in header.parameters:
        millions = parameters / 1e6
        sizes.append(f"{millions:.0f}" if millions >= 10 else f"{millions:.{digits}g}")
    return f"{name} {span_text(sizes)}M".strip()


# --- the answer


def answer(comparison: Comparison) -> str:
    """Return the answer of the comparison, in one sentence or a few."""
    rows = comparison.rows
    column_indices = shown_columns(comparison)
    has_numbers = any(cell.mean is not None for cell in _all_cells(comparison))
    if not column_indices or not has_numbers:
        return NOTHING_YET
    if comparison.header.protocol == RECALL.protocol:
        return recall_answer(comparison) or NOTHING_YET
    if is_exact(comparison):
        return exact_answer(comparison)
    if any(row.curve for row in rows):
        return _break_answer(rows)
    if comparison.header.baseline is not None:
        return _baseline_answer(comparison, column_indices[-1])
    if len(rows) == 1:
        return _row_answer(rows[0], comparison.header.metric)
    sentences = [
        _undertrained_answer(rows),
        *_rank_answers(comparison, column_indices),
        _verdict_answer(comparison, column_indices[-1]),
        recall_answer(comparison),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _break_answer(rows: Sequence[Row]) -> str:
    """Return `Past T alibi does not break; rope breaks.`"""
    rows_and_words = []
    for row in rows:
        if row.curve is None:
            continue
        text = breaks_text(row.curve)
        if len(rows) == 1 and text not in VERBS:
            return f"Past T {row_label(row)} breaks at {text}."
        rows_and_words.append((row, text if text in VERBS else "breaks"))
    return _rows_by_word("Past T", rows_and_words)


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
        if versus is None or versus.word == "unresolved":  # the baseline itself, too
            rivals.append(Rival.of_losses(row, row.cells[last], versus))
    note = f" ({what_settles(rivals)})"
    sentence = _rows_by_word(start, rows_and_words, {"unresolved": note})
    return sentence or f"{start}: no row can be compared with it."


def _row_answer(row: Row, metric: str) -> str:
    """Return `Collapses at 8x: +1.20 nats at 2x, +2.44 at 8x; breaks at 1.44x.`"""
    if row.undertrained:
        return "Undertrained: at T not below a byte trigram, so changes past T say little."
    past = [cell for cell in row.cells if cell.multiple > 1 and cell.change is not None]
    if not past:
        return "Not measured past T."
    first = past[0]
    last = past[-1]
    clauses = [f"{_short_change(first, metric)} {UNITS_OF_CHANGES[metric]} at {length_text(first.multiple)}"]
    if last is not first:
        clauses.append(f"{_short_change(last, metric)} at {length_text(last.multiple)}")
    sentence = f"{_outcome(last)} at {length_text(last.multiple)}: {', '.join(clauses)}"
    needs = re.search(r"\(needs (.*)\)", last.verdict or "")
    if needs:
        sentence += f"; {needs[1]} would help"
    if row.breaks is not None and any(row.breaks.breaks_at):
        sentence += f"; breaks at {breaks_text(row.breaks)}"
    return f"{sentence}."


def _outcome(cell: Cell) -> str:
    verb = VERBS[short_verdict(cell.verdict or "")]
    return verb.one.capitalize()


def _short_change(cell: Cell, metric: str) -> str:
    """Return a change in two digits, a small one in three."""
    change = cell.change or 0.0
    return f"{change:+.2f}" if 0.1 <= abs(change) < 1000 else printed_change(change, metric)


def _undertrained_answer(rows: Sequence[Row]) -> str:
    undertrained = [row for row in rows if row.undertrained]
    as_trained = [row for row in rows if row.extend is None]
    if not undertrained:
        return ""
    if len(undertrained) == len(as_trained):
        return "All runs undertrained."
    return f"Undertrained: {names_text(undertrained)}."


def _rank_answers(comparison: Comparison, column_indices: Sequence[int]) -> list[str]:
    """Return `Lowest loss at T: rope (tied: fox).`, the same at the longest window, and what is unresolved.

    If the rows are the same at T and at the longest window, one sentence says both: `Lowest loss at T and 8x:
    alibi.`
    """
    at_t = [index for index in column_indices if comparison.columns[index].multiple == 1]
    ends = list(dict.fromkeys([*at_t, column_indices[-1]]))
    lengths_of_names: dict[str, list[str]] = {}
    for index in ends:
        best = _rows_of_rank(comparison.rows, index, "best")
        tied = _rows_of_rank(comparison.rows, index, "tied")
        if not best:
            continue
        text = names_text(best)
        if tied:
            text += f" (tied: {names_text(tied, 'others')})"
        lengths_of_names.setdefault(text, []).append(_length_name(comparison, index))
    sentences = [
        f"Lowest loss at {' and '.join(lengths)}: {text}." for text, lengths in lengths_of_names.items()
    ]
    return [*sentences, _unresolved_answer(comparison, ends)]


def _unresolved_answer(comparison: Comparison, indices: Sequence[int]) -> str:
    """Return `Unresolved at T: learned; at 8x: nope (2 seeds: add seed=2).`; empty if nothing is."""
    lengths_of_names: dict[str, list[str]] = {}
    rivals = []
    for index in indices:
        unresolved = _rows_of_rank(comparison.rows, index, "unresolved")
        if not unresolved:
            continue
        lengths_of_names.setdefault(names_text(unresolved), []).append(_length_name(comparison, index))
        for row in [*_rows_of_rank(comparison.rows, index, "best"), *unresolved]:
            cell = row.cells[index]
            rivals.append(Rival.of_losses(row, cell, cell.versus_best))
    if not lengths_of_names:
        return ""
    clauses = [f"at {' and '.join(lengths)}: {names}" for names, lengths in lengths_of_names.items()]
    return f"Unresolved {'; '.join(clauses)} ({what_settles(rivals)})."


def _length_name(comparison: Comparison, index: int) -> str:
    multiple = comparison.columns[index].multiple
    return "T" if multiple == 1 else length_text(multiple)


@dataclass(frozen=True)
class Rival:
    """A row of an unresolved comparison, with what it was measured on."""

    row: Row
    seeds: int
    sample: str  # what its interval is over besides seeds: `160 documents`
    larger_sample: str  # how to get more of these
    needs: str | None  # `seeds`, `documents` or `windows`; None for the row that the others are compared with

    @classmethod
    def of_losses(cls, row: Row, cell: Cell, versus: Versus | None) -> Rival:
        """Return a rival in its loss."""
        sample = "few documents" if cell.documents is None else plural(cell.documents, "document")
        needs = None if versus is None else versus.needs
        return cls(row, cell.seeds, sample, "measure a larger text", needs)

    @classmethod
    def of_recall(cls, row: Row, cell: RecallCell) -> Rival:
        """Return a rival in its recall."""
        more = f"eval.recall.windows={MORE_WINDOWS * cell.windows}"
        return cls(row, cell.seeds, plural(cell.windows, "window"), more, cell.needs)


def what_settles(rivals: Sequence[Rival]) -> str:
    """Return what would settle a comparison: `2 seeds: add seed=2`, `160 documents: measure a larger text`.

    The advice is for the rival with the fewest seeds. If others have more, it is named: `fox has 1 seed: add
    seed=1,2`. Empty without rivals.
    """
    if not rivals:
        return ""
    fewest = min(rivals, key=lambda rival: rival.seeds)
    if all(rival.needs != "seeds" for rival in rivals):
        return f"{fewest.sample}: {fewest.larger_sample}"
    wanted = max(ENOUGH_SEEDS, fewest.seeds + 1) - fewest.seeds
    unused = [seed for seed in range(len(fewest.row.seeds) + wanted) if seed not in fewest.row.seeds]
    count = plural(fewest.seeds, "seed")
    if any(rival.seeds != fewest.seeds for rival in rivals):
        count = f"{row_label(fewest.row)} has {count}"
    return f"{count}: add seed={','.join(map(str, unused[:wanted]))}"


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
    counted = [row for row in trained if row.cells[last].seeds >= ENOUGH_SEEDS] or trained
    rows_and_words = [(row, short_verdict(row.cells[last].verdict or "")) for row in counted]
    start = f"At {length_text(multiple)}"
    if len(counted) < len(trained):
        start += f", of {len(counted)} rows with {ENOUGH_SEEDS} or more seeds,"
    return _rows_by_word(start, rows_and_words)


def _rows_by_word(
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
    if not any(rows_of):
        return ""
    if len(rows_of) == 1 and len(rows_and_words) > 1:
        (word,) = rows_of
        return f"{start} all {VERBS[word].several}{notes.get(word, '')}."
    clauses: list[str] = []
    for word, rows in rows_of.items():
        verb = VERBS[word].one if len(rows) == 1 else VERBS[word].several
        is_last = len(clauses) == len(rows_of) - 1
        subject = f"the other {len(rows)}" if is_last and len(rows) > 1 else names_text(rows)
        clauses.append(f"{subject} {verb}{notes.get(word, '')}")
    return f"{start} {'; '.join(clauses)}."


# --- recall


def has_several_recall_seeds(comparison: Comparison) -> bool:
    """Tell whether a row has recall of several seeds, so that some of them may not have learned it."""
    learning_of_rows = [learning_of(row) for row in comparison.rows]
    return any(learning is not None and learning.seeds > 1 for learning in learning_of_rows)


def recall_answer(comparison: Comparison) -> str:
    """Return `Highest recall at 8x: hard_alibi (98%; tied: fire). Did not learn to recall: nope.`"""
    columns = RECALL.columns(comparison)
    if columns is None or not columns.multiples:
        return ""
    length = length_text(columns.multiples[-1])
    sentences = [
        _recall_ranks(comparison.rows, length),
        _partial_learning(comparison.rows),
        _recall_failures(comparison.rows),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _recall_ranks(rows: Sequence[Row], length: str) -> str:
    learned: list[tuple[Row, RecallCell]] = []
    for row in rows:
        recall = RECALL.of(row)
        farthest = recall.beyond[-1] if recall is not None and recall.learned else None
        if farthest is not None:
            learned.append((row, farthest))
    if not learned:
        return ""
    learned.sort(key=lambda pair: -pair[1].accuracy)
    best_row, best = learned[0]
    if best.rank != "best":  # nothing is ranked, so it gives the numbers alone
        texts = [f"{row_label(row)} {percent_text(cell)}" for row, cell in learned[:MOST_NAMED]]
        return f"Recall at {length}: {', '.join(texts)}."
    tied = [row for row, cell in learned if cell.rank == "tied"]
    unresolved = [(row, cell) for row, cell in learned if cell.rank == "unresolved"]
    number = percent_text(best)
    if tied:
        number += f"; tied: {names_text(tied, 'others')}"
    sentence = f"Highest recall at {length}: {row_label(best_row)} ({number})."
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
    columns = RECALL.columns(comparison)
    if recall is None or columns is None or recall.within is None:
        return ""
    within = f"{percent_text(recall.within)} within T"
    if not recall.learned:
        return f"recall: did not learn, {within} (below {columns.level:g}%)"
    if recall.learning is not None and recall.learning.seeds > 1:
        within = f"{learning_text(recall.learning)} seeds learned; these find {within}"
    parts = [within]
    for multiple, cell in zip(columns.multiples, recall.beyond, strict=True):
        if cell is not None:
            parts.append(f"{percent_text(cell)} at {length_text(multiple)}")
    return f"recall: {', '.join(parts)}; horizon {horizon_text(recall)}"


# --- why a row fails

REASON_WORDS: dict[Reason, str] = {
    "positions": "positions never seen",
    "spread": "attention spread",
    "sink": "sink broken",
}


def why_notes(comparison: Comparison) -> list[str]:
    """Return why rows collapse.

    The table of the protocol `dispersion` has a sentence for each row, and so has a single row. Other tables
    have one line, with the rows of each reason.
    """
    collapsed = [row for row in comparison.rows if _reasons(row) is not None]
    if not collapsed:
        return []
    if comparison.header.protocol == DISPERSION.protocol or len(comparison.rows) == 1:
        return [why_sentence(row) for row in collapsed]
    clauses = []
    for reason, words in REASON_WORDS.items():
        rows = [row for row in collapsed if reason in (_reasons(row) or ())]
        if rows:
            clauses.append(f"{words}: {names_text(rows)}")
    without = [row for row in collapsed if not _reasons(row)]
    if without:
        clauses.append(f"none of the three reasons: {names_text(without)}")
    return [f"why they collapse (--protocol {DISPERSION.protocol}): {'; '.join(clauses)}"]


def _reasons(row: Row) -> Sequence[Reason] | None:
    """Return why a row collapses; None if it does not, or if that was not measured."""
    dispersion = DISPERSION.of(row)
    return None if dispersion is None else dispersion.reasons


def why_sentence(row: Row) -> str:
    """Return the reasons of a collapse that the numbers support, each with its numbers."""
    dispersion = DISPERSION.of(row)
    assert dispersion is not None and dispersion.reasons is not None
    start = f"why {row_label(row)} collapses at {length_text(dispersion.longest.multiple)}"
    if not dispersion.reasons:
        return f"{start}: none of these: {', '.join(REASON_WORDS.values())}"
    clauses = []
    for reason in dispersion.reasons:
        clauses.append(f"{REASON_WORDS[reason]} ({_evidence(dispersion, reason)})")
    return f"{start}: {'; '.join(clauses)}"


def _evidence(dispersion: RowDispersion, reason: Reason) -> str:
    """Return the numbers that support a reason."""
    at_t = dispersion.at_t
    longest = dispersion.longest
    assert at_t is not None  # else there are no reasons
    length = length_text(longest.multiple)
    if reason == "positions":
        assert dispersion.far_share is not None
        return f"T tokens alone, placed that far, lose {100 * dispersion.far_share:.0f}% as much"
    if reason == "spread":
        near_keys, far_keys = (f"{math.exp(cell.mean_entropy):.3g}" for cell in (at_t, longest))
        keys = f"like {near_keys} equal keys at T and {far_keys} at {length}"
        return f"{keys}, outputs vary {dispersion.variance_ratio:.2g} times as much"
    layer = at_t.sink_layer
    weights = f"{share_text(at_t.first[layer])} at T and {share_text(longest.first[layer])} at {length}"
    return f"layer {layer + 1} puts {weights} on the first token"


# --- the notes


def sample_line(comparison: Comparison) -> str:
    """Return documents and seeds, and what the CI of one seed does not cover; empty without documents."""
    header = comparison.header
    if header.documents is None:
        return ""
    noun = sample_noun(header.protocol)
    kind = noun if noun != "document" else f"{header.split or 'test'} document"
    count = span_text(header.documents)
    line = f"{count} {kind}" if count == "1" else f"{count} {kind}s"
    cells = _all_cells(comparison)
    if {cell.seeds for cell in cells if cell.seeds} == {1}:
        has_interval = any(cell.change_ci95 for cell in cells)
        covers = f"the CI covers {noun}s, not training randomness" if has_interval else "no 95% CI"
        return f"{line}; 1 seed: {covers}"
    if len(comparison.rows) == 1:
        seeds = ", ".join(str(seed) for seed in comparison.rows[0].seeds)
        return f"{line}; seeds {seeds}"
    return line


def unit_note(comparison: Comparison) -> str:
    """Return the note on the numbers in the table of one screen."""
    header = comparison.header
    unit = unit_text(header)
    if header.baseline is not None:
        return f"{unit}: difference to {header.baseline} at the same length; of itself the loss"
    if any(row.curve for row in comparison.rows):
        return f"loss in {unit} at position T, then the rise over the mean from T/2 to T"
    quantity = "perplexity" if header.metric == "ppl" else f"loss in {unit}"
    chance = re.search(r"\(chance.*", header.unit)
    if chance and header.metric != "ppl":
        quantity += f" {chance[0]}"
    return f"{quantity} at T, then the change when {why_loss_changes(header.protocol)}"


def recall_note(comparison: Comparison, with_interval: bool) -> str:
    """Return the note on the columns of recall; empty without them."""
    columns = RECALL.columns(comparison)
    if columns is None:
        return ""
    noun = planted_noun(columns.kind)
    note = f"recall@: % of {noun} found within T, then the farthest"
    if has_several_recall_seeds(comparison):
        seeds = f"learned: seeds that find {columns.level:g}% of the {noun} within T"
        note = f"{seeds}; recall@: % that these find within T, then the farthest"
    if columns.guess is not None:
        note += f" (a guess: {columns.guess:.0f}%)"
    if any(did_not_learn_to_recall(row) for row in comparison.rows):
        note += "; (did not learn)"
    if with_interval:
        note += ", each with its 95% CI"
    if columns.has_fixed_draw:
        note += f"; {FIXED_DRAW}"
    return note


def beyond_notes(comparison: Comparison) -> list[str]:
    """Return the policies past T, for a table that has no room for them."""
    rows_of: dict[str, list[str]] = {}
    for row in comparison.rows:
        if row.beyond:
            rows_of.setdefault(row.beyond, []).append(row_label(row))
    return [f"beyond={policy} of {' and '.join(names)}" for policy, names in rows_of.items()]


def recovered_note(rows: Sequence[Row], with_interval: bool = False) -> str:
    """Return what `recovered` means, with the share if there is one row; empty without any share."""
    recovered = [row.recovered for row in rows if row.recovered is not None]
    if not recovered:
        return ""
    lengths = dict.fromkeys(length_text(share.multiple) for share in recovered)
    meaning = f"of what far text gives a model trained at {' or '.join(lengths)} (0% is cropping)"
    note = f"recovered: {meaning}"
    if len(rows) == 1:
        share = recovered[0].note or recovered_with_interval(recovered[0])
        note = f"recovered: {share} {meaning}"
    return f"{note}, ± half its 95% CI" if with_interval else note


def plus_minus_note(comparison: Comparison) -> str:
    """Return the note on ± in the table of a paper; empty if no loss has it."""
    cells = _all_cells(comparison)
    if is_recall_only(comparison):
        return ""
    over_seeds = any(cell.spread is not None for cell in cells)
    over_documents = any(cell.change_ci95 and cell.change_spread is None for cell in cells)
    if comparison.header.baseline is not None:
        return "±: half the 95% CI"
    if over_seeds and over_documents:
        return "±: standard deviation over seeds, with one seed half the 95% CI over documents"
    if over_seeds:
        return "±: standard deviation over seeds"
    return "±: half the 95% CI over documents" if over_documents else ""


def marks_note(comparison: Comparison, indices: Sequence[int]) -> str:
    """Return the note on the marks of the table of one screen; empty if nothing is ranked.

    `indices` are those of the columns in the table.
    """
    quantity = _quantity_of_marks(comparison, indices)
    if not quantity:
        return ""
    reasons = ["behind"]
    if _unresolved_names(comparison, indices) or _unresolved_recall(comparison):
        reasons.append("unresolved")
    if any(row.undertrained for row in comparison.rows):
        reasons.append("undertrained")
    return f"{BEST} {quantity}; {TIED} tied; no mark: {' or '.join(reasons)}"


def paper_marks_note(comparison: Comparison, indices: Sequence[int]) -> str:
    """Return the note on bold numbers and the tilde in the table of a paper; empty if nothing is ranked.

    It names the rows that are unresolved, which have no mark.
    """
    quantity = _quantity_of_marks(comparison, indices)
    if not quantity:
        return ""
    margins = []
    if not is_recall_only(comparison):
        margins.append(f"{SAME_MARGIN:g} bits/byte")
    if RECALL.columns(comparison) is not None:
        margins.append(f"{100 * SAME_RECALL:.0f} points of recall")
    tied = f"tied with it, the whole 95% CI of the difference within {' or '.join(margins)}"
    unresolved = _unresolved_names(comparison, indices)
    unresolved_recall = _unresolved_recall(comparison)
    if unresolved_recall:
        unresolved.append(f"{names_text(unresolved_recall)} in recall")
    reasons = ["behind"]
    if unresolved:
        reasons.append(f"unresolved ({', '.join(unresolved)})")
    if any(row.undertrained for row in comparison.rows):
        reasons.append("undertrained")
    return f"bold: {quantity}; tilde: {tied}; no mark: {' or '.join(reasons)}"


def _quantity_of_marks(comparison: Comparison, indices: Sequence[int]) -> str:
    """Return what the best of a column is: `lowest loss at T, lowest change past T, highest recall`."""
    multiples = set()
    for row in comparison.rows:
        for index in indices:
            if rank_of_number(comparison, row.cells[index]) is not None:
                multiples.add(comparison.columns[index].multiple)
    quantities = []
    if comparison.header.baseline is not None and multiples:
        quantities.append("lowest loss")
    else:
        if 1 in multiples:
            quantities.append("lowest loss at T")
        if multiples - {1}:
            quantities.append("lowest change elsewhere" if min(multiples) < 1 else "lowest change past T")
    if any(cell.rank is not None for _, cell in _farthest_recalls(comparison)):
        quantities.append("highest recall")
    return ", ".join(quantities)


def _unresolved_names(comparison: Comparison, indices: Sequence[int]) -> list[str]:
    """Return `learned at T`, `3 rows at 4x and 8x`: what is unresolved of the numbers in the table."""
    lengths_of_names: dict[str, list[str]] = {}
    for index in indices:
        unresolved = []
        for row in comparison.rows:
            rank = rank_of_number(comparison, row.cells[index])
            if rank is not None and rank.word == "unresolved":
                unresolved.append(row)
        if unresolved:
            lengths_of_names.setdefault(names_text(unresolved), []).append(_length_name(comparison, index))
    return [f"{names} at {' and '.join(lengths)}" for names, lengths in lengths_of_names.items()]


def _unresolved_recall(comparison: Comparison) -> list[Row]:
    return [row for row, cell in _farthest_recalls(comparison) if cell.rank == "unresolved"]


def _farthest_recalls(comparison: Comparison) -> list[tuple[Row, RecallCell]]:
    """Return each row with its recall in the longest window, whose ranks are in the tables."""
    recalls = []
    for row in comparison.rows:
        farthest = farthest_recall_of(row)
        if farthest is not None:
            recalls.append((row, farthest))
    return recalls


def more_note(comparison: Comparison) -> str:
    """Return how to see more."""
    if is_recall_only(comparison):
        return "more: --full, --explain, --plot FILE (the grid of windows and distances)"
    return "more: --full, --explain, --protocol all"


def also_measured_note(header: Header) -> str:
    """Return the other protocols of the runs; empty without any."""
    others = [name for name in header.also_measured if name not in (HEADLINE, RECALL.protocol)]
    if not others or header.protocol != HEADLINE:
        return ""
    return f"also measured: {', '.join(others)} (posenc compare --protocol all)"


def left_out_notes(header: Header) -> list[str]:
    """Return notes on records that no table has, although they are of the checkpoints that it shows.

    Records of earlier checkpoints, and records that chose a learning rate or knobs, are noted by --full
    alone.
    """
    return [
        _left_out_text(reason, header.left_out_by_reason[reason])
        for reason in (OTHER_TARGETS, OTHER_KNOBS)
        if reason in header.left_out_by_reason
    ]


def _left_out_text(reason: str, count: int) -> str:
    return f"not shown: {plural(count, 'record')} {reason}"


def full_notes(comparison: Comparison) -> list[str]:
    """Return the notes below the tables of --full: targets, reference, left out records, notes of rows."""
    header = comparison.header
    notes = []
    protocol_note = note_of(header.protocol)
    if protocol_note:
        notes.append(f"{header.protocol}: {protocol_note}")
    if header.targets is not None:
        notes.append(f"{span_text(header.targets)} targets; {sample_line(comparison)}")
    if header.reference is not None and header.reference.mean is not None:
        loss = f"{header.reference.mean:.3f} {unit_text(header)}"
        notes.append(f"a byte trigram of the training text: {loss}")
    for row in comparison.rows:
        recall = RECALL.of(row)
        if recall is not None and recall.note:
            notes.append(f"recall: {row_label(row)}: {recall.note}")
    notes += _differences(header.also_differs)
    for reason, count in header.left_out_by_reason.items():
        notes.append(_left_out_text(reason, count))
    for row in comparison.rows:
        notes += [f"{row_label(row)}: {note}" for note in row.notes]
    return notes


def _differences(values_of: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"the rows also differ in {key}: {', '.join(values)}" for key, values in values_of.items()]
