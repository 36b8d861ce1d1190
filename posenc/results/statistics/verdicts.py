"""Words for the change of a row's loss against T: better, same, worse, collapsed or unclear.

Margins are in bits per byte, so that a word means the same for every tokenizer. They were set before any
encoding was measured.
"""

from __future__ import annotations

from posenc.results.statistics.intervals import CONFIDENCE, Estimate

SAME_MARGIN = 0.02  # bits per byte; a smaller change is no reason to choose an encoding
COLLAPSED_MARGIN = 0.5  # bits per byte
REFERENCE_MARGIN = 0.1  # bits per byte; a model trained enough is at least this much below the trigram

BETTER_WORD = "better"
SAME_WORD = "same"
WORSE_WORD = "worse"
COLLAPSED_WORD = "collapsed"
MORE_SEEDS = "unclear (needs more seeds)"
MORE_DOCUMENTS = "unclear (needs more documents)"


def verdict(change: Estimate) -> str:
    """Return the word for a change against the crop line, in bits per byte; lower is better.

    If the interval crosses SAME_MARGIN, the word is `unclear` and says what would narrow it: whichever
    of seeds and documents has the wider part of it. For a single seed, and below MIN_DOCUMENTS (where there
    is no interval), that is documents.
    """
    interval = change.interval()
    half_widths = change.half_widths(1 - CONFIDENCE)
    if interval is None or half_widths is None:
        return MORE_DOCUMENTS
    low, high = interval
    # The strongest word that the whole interval supports: a row that surely collapsed is surely worse, too.
    if low > COLLAPSED_MARGIN:
        return COLLAPSED_WORD
    if low > SAME_MARGIN:
        return WORSE_WORD
    if high < -SAME_MARGIN:
        return BETTER_WORD
    if low >= -SAME_MARGIN and high <= SAME_MARGIN:
        return SAME_WORD
    seed_half, document_half = half_widths
    return MORE_SEEDS if seed_half > document_half else MORE_DOCUMENTS


def short_verdict(word: str) -> str:
    """Return the word without its reason, so that it fits into a cell: `unclear`."""
    return word.partition(" ")[0]
