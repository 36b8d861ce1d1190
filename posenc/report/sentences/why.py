"""Say why rows collapse, by the protocol `dispersion`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posenc.core.quantities import length_text
from posenc.report.texts import names_text, row_label, share_text
from posenc.results.beside.dispersion import DISPERSION, Reason, RowDispersion
from posenc.results.comparison import Comparison
from posenc.results.rows import Row

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
    collapsed = [row for row in comparison.rows if _reasons(row) is not None and not row.undertrained]
    if not collapsed:
        return []
    if comparison.header.protocol == DISPERSION.protocol or len(comparison.rows) == 1:
        return [why_sentence(row) for row in collapsed]
    # The line names no length, so beside columns without the longest one it would contradict them.
    multiples = {column.multiple for column in comparison.columns}
    collapsed = [row for row in collapsed if _longest_multiple(row) in multiples]
    if not collapsed:
        return []
    clauses = []
    for reason, words in REASON_WORDS.items():
        # A row with two reasons is named in both clauses.
        rows = [row for row in collapsed if reason in (_reasons(row) or ())]
        if rows:
            clauses.append(f"{words}: {names_text(rows)}")
    # They are named, since the reader of the other clauses would take them for the reasons of all rows.
    unexplained = [row for row in collapsed if not _reasons(row)]
    if unexplained:
        clauses.append(f"none of the three reasons: {names_text(unexplained)}")
    return [f"why they collapse (--protocol {DISPERSION.protocol}): {'; '.join(clauses)}"]


def _reasons(row: Row) -> Sequence[Reason] | None:
    """Return why a row collapses; None if it does not, or if that was not measured."""
    dispersion = DISPERSION.of(row)
    return None if dispersion is None else dispersion.reasons


def _longest_multiple(row: Row) -> float:
    """Return the longest window of the dispersion of a row that has some, as a multiple of T."""
    dispersion = DISPERSION.of(row)
    assert dispersion is not None
    return dispersion.longest.multiple


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
        near_keys = f"{math.exp(at_t.mean_entropy):.3g}"
        far_keys = f"{math.exp(longest.mean_entropy):.3g}"
        keys = f"like {near_keys} equal keys at T and {far_keys} at {length}"
        return f"{keys}, outputs vary {dispersion.variance_ratio:.2g} times as much"
    layer = at_t.sink_layer
    weights = f"{share_text(at_t.first[layer])} at T and {share_text(longest.first[layer])} at {length}"
    return f"layer {layer + 1} puts {weights} on the first token"
