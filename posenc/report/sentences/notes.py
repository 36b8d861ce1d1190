"""Write the notes below the tables: units, samples, and what is not shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from posenc.core.errors import plural
from posenc.core.quantities import length_text
from posenc.report.cell_texts import has_curves, recovered_with_interval
from posenc.report.protocol_words import note_of, sample_noun, why_loss_changes
from posenc.report.sentences.shared import all_cells, has_unigram_reference, is_recall_only
from posenc.report.texts import row_label, span_text, unit_text
from posenc.results.beside.recall import RECALL
from posenc.results.comparison import Comparison
from posenc.results.headers import Header
from posenc.results.pools import OTHER_KNOBS, OTHER_TARGETS, WITHOUT_NUMBER
from posenc.results.records import HEADLINE
from posenc.results.rows import Row

REASONS_SHOWN = 6  # a screen has room for so many


def sample_line(comparison: Comparison) -> str:
    """Return documents and seeds, and what the CI of one seed does not cover; empty without documents."""
    header = comparison.header
    if header.documents is None:
        return ""
    noun = sample_noun(header.protocol)
    kind = noun if noun != "document" else f"{header.split or 'test'} document"
    count = span_text(header.documents)
    line = f"{count} {kind}" if count == "1" else f"{count} {kind}s"
    cells = all_cells(comparison)
    # A reader takes a narrow interval for a sure result. That of one seed holds for this model alone.
    if {cell.seeds for cell in cells if cell.seeds} == {1}:
        beyond = [cell for cell in cells if cell.multiple != 1]
        if not beyond and header.columns_left_out:  # of a loss at T alone no interval is shown
            return f"{line}; 1 seed"
        # With few documents there is no interval at all, and the note must not speak of what it covers.
        has_interval = any(cell.change_ci95 for cell in beyond)
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
        return f"{unit}: difference to {header.baseline} at the same length; losses have no sign"
    if has_curves(comparison):
        return f"loss in {unit} at position T, then the rise over the mean from T/2 to T"
    quantity = "perplexity" if header.metric == "ppl" else f"loss in {unit}"
    # A probe of random tokens has a loss that only its chance level makes readable: `induction` was above it
    # for every model of this size (docs/log.md, 2026-11-21).
    chance = re.search(r"\(chance.*", header.unit)
    if chance and header.metric != "ppl":
        quantity += f" {chance[0]}"
    return f"{quantity} at T, then the change when {why_loss_changes(header.protocol)}"


def beyond_notes(comparison: Comparison) -> list[str]:
    """Return the policies past T, for a table that has no room for them."""
    # By policy and not by row: several encodings mostly share one, and a line for each row would fill the
    # screen.
    rows_of: dict[str, list[str]] = {}
    for row in comparison.rows:
        if row.beyond:
            rows_of.setdefault(row.beyond, []).append(row_label(row))
    return [f"beyond={policy} of {' and '.join(names)}" for policy, names in rows_of.items()]


def recovered_note(rows: Sequence[Row], with_interval: bool = False) -> str:
    """Return what `recovered` means, with the share if there is one row; empty without any share."""
    recovered = [row.recovered for row in rows if row.recovered is not None]
    if len(rows) == 1 and recovered and recovered[0].share is None:
        return f"recovered: no share of what far text is worth: {recovered[0].note}"
    if all(share.share is None for share in recovered):
        return ""
    lengths = dict.fromkeys(length_text(share.multiple) for share in recovered)
    meaning = f"of what far text gives a model trained at {' or '.join(lengths)} (0% is cropping)"
    note = f"recovered: {meaning}"
    if len(rows) == 1:
        note = f"recovered: {recovered_with_interval(recovered[0])} {meaning}"
    return f"{note}, ± half its 95% CI" if with_interval else note


def plus_minus_note(comparison: Comparison) -> str:
    """Return the note on ± in the table of a paper; empty if no loss has it."""
    cells = all_cells(comparison)
    if is_recall_only(comparison):
        return ""
    over_seeds = any(cell.spread is not None for cell in cells)
    over_documents = any(cell.change_ci95 and cell.change_spread is None for cell in cells)
    if comparison.header.baseline is not None:
        # The baseline has losses in a table of differences, and so has a row that cannot be compared with it.
        losses = [cell for cell in cells if cell.versus_baseline is None]
        has_spread = any(cell.spread is not None for cell in losses)
        of_losses = "; of a loss the standard deviation over seeds" if has_spread else ""
        return f"±: half the 95% CI{of_losses}"
    if over_seeds and over_documents:
        return "±: standard deviation over seeds, with one seed half the 95% CI over documents"
    if over_seeds:
        return "±: standard deviation over seeds"
    return "±: half the 95% CI over documents" if over_documents else ""


def more_note(comparison: Comparison) -> str:
    """Return how to see more."""
    if is_recall_only(comparison):
        return "more: --full, --explain, --plot FILE (the grid of windows and distances)"
    return "more: --full, --explain, --protocol all"


def also_measured_note(comparison: Comparison) -> str:
    """Return the other protocols of the runs; empty without any."""
    header = comparison.header
    in_table = {HEADLINE}
    # Recall has columns beside the losses, so the reader need not ask for its table. But recall of other
    # plants than those of the training, or of another text, is in its own table alone.
    if RECALL.of_table(comparison) is not None:
        in_table.add(RECALL.protocol)
    other_protocols = [name for name in header.also_measured if name not in in_table]
    # In the other tables the user has already chosen a protocol, and knows of the option.
    if not other_protocols or header.protocol != HEADLINE:
        return ""
    return f"also measured: {', '.join(other_protocols)} (posenc compare --protocol all)"


def left_out_notes(header: Header) -> list[str]:
    """Return notes on records that no table has, although they are of the checkpoints that it shows.

    Records of earlier checkpoints, and records that chose a learning rate or knobs, are noted by --full
    alone.
    """
    return [
        _left_out_text(reason, header.left_out_by_reason[reason])
        for reason in (OTHER_TARGETS, WITHOUT_NUMBER, OTHER_KNOBS)
        if reason in header.left_out_by_reason
    ]


def _left_out_text(reason: str, count: int) -> str:
    return f"not shown: {plural(count, 'record')} {reason}"


def reason_notes(comparison: Comparison) -> list[str]:
    """Return why no cell has a number, for a table without any; empty if one has a number.

    In a table with numbers a cell says the first words of its reason, and --full has the others.
    """
    if any(cell.mean is not None for cell in all_cells(comparison)):
        return []
    row_notes = []
    for row in comparison.rows:
        label = "" if len(comparison.rows) == 1 else f"{row_label(row)}: "
        row_notes += [f"{label}{note}" for note in row.notes]
    n_hidden = len(row_notes) - REASONS_SHOWN
    shown = row_notes[:REASONS_SHOWN]
    if n_hidden > 0:
        shown.append(f"and {plural(n_hidden, 'other reason')}: posenc compare --full")
    return shown


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
        reference = "a byte trigram of the training text"
        if has_unigram_reference(header):
            reference = "the frequencies of the text's own tokens"
        notes.append(f"{reference}: {loss}")
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
