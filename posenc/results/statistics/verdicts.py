"""Words for a row's own change.

Margins are in bits per byte, so that a word means the same for every tokenizer. They were set before any
encoding was measured.
"""

from __future__ import annotations

from posenc.results.statistics.intervals import CONFIDENCE, Estimate

SAME = 0.02  # bits per byte: nobody should choose an encoding for less
COLLAPSED = 0.5  # bits per byte
REFERENCE = 0.1  # bits per byte: a trained model is at least so much below the trigram reference

BETTER_WORD = "better"
SAME_WORD = "same"
WORSE_WORD = "worse"
COLLAPSED_WORD = "collapsed"
MORE_SEEDS = "unclear (needs more seeds)"
MORE_DOCUMENTS = "unclear (needs more documents)"


def verdict(change: Estimate) -> str:
    """Return the word for a change against the crop line, in bits per byte; lower is better.

    Where the interval crosses a margin it is `unclear`, with what would narrow it: documents for one seed and
    below MIN_DOCUMENTS (then there is no interval), else whichever part of the interval is wider.
    """
    interval = change.interval()
    half_widths = change.half_widths(1 - CONFIDENCE)
    if interval is None or half_widths is None:
        return MORE_DOCUMENTS
    low, high = interval
    if low > COLLAPSED:
        return COLLAPSED_WORD
    if low > SAME:
        return WORSE_WORD
    if high < -SAME:
        return BETTER_WORD
    if low >= -SAME and high <= SAME:
        return SAME_WORD
    seed_half, document_half = half_widths
    return MORE_SEEDS if seed_half > document_half else MORE_DOCUMENTS


def short_verdict(word: str) -> str:
    """Return the word without its reason, so that it fits into a cell: `unclear`."""
    return word.partition(" ")[0]
