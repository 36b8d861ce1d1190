"""Words for a change: better, same, worse, collapsed. Given only where the 95% interval clears the margin.

The margins are in bits per byte, so that a word means the same for every tokenizer, and were set before any
encoding was measured.
"""

from __future__ import annotations

from posenc.results.statistics import Estimate

CONFIDENCE = 0.95
SAME = 0.02  # bits per byte: nobody should choose an encoding for less
COLLAPSED = 0.5  # bits per byte
REFERENCE = 0.1  # bits per byte: a trained model is at least so much below the trigram reference
EFFECTIVE = 0.02  # nats per token: a loss so near its best is not harmed by its window

BETTER, SAME_WORD, WORSE, COLLAPSED_WORD = "better", "same", "worse", "collapsed"
MORE_SEEDS = "unclear (needs more seeds)"
MORE_DOCUMENTS = "unclear (needs more documents)"


def verdict(change: Estimate) -> str:
    """The word for a change against the crop line, in bits per byte; lower is better.

    Where the interval lies on no side of a margin, `unclear`, with what would narrow it: documents for one
    seed and below 30 documents (then there is no interval), else whichever of the two is the wider.
    """
    interval = change.interval(CONFIDENCE)
    if interval is None:
        return MORE_DOCUMENTS
    low, high = interval
    if low > COLLAPSED:
        return COLLAPSED_WORD
    if low > SAME:
        return WORSE
    if high < -SAME:
        return BETTER
    if low >= -SAME and high <= SAME:
        return SAME_WORD
    return needs(change)


def needs(change: Estimate) -> str:
    """`unclear`, with what would narrow the interval."""
    seeds, documents = change.halves(1 - CONFIDENCE) or (0.0, 0.0)
    return MORE_SEEDS if seeds > documents else MORE_DOCUMENTS


def short(word: str) -> str:
    """The word without its reason, as it fits a cell."""
    return word.partition(" ")[0]
