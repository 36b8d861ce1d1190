"""Words for the change of a row's loss against T: better, same, worse, collapsed or unclear.

Margins are in bits per byte, so that a word means the same for every tokenizer. They were set before any
encoding was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from posenc.results.statistics.intervals import CONFIDENCE, Estimate

SAME_MARGIN = 0.02  # bits per byte; a smaller change is no reason to choose an encoding
COLLAPSED_MARGIN = 0.5  # bits per byte
REFERENCE_MARGIN = 0.1  # bits per byte; a model trained enough is at least this much below the trigram

BETTER_WORD = "better"
SAME_WORD = "same"
WORSE_WORD = "worse"
COLLAPSED_WORD = "collapsed"
UNCLEAR_WORD = "unclear"
Needs = Literal["seeds", "documents"]


@dataclass(frozen=True)
class ChangeVerdict:
    """The word for a change, and what would settle an unclear one."""

    word: str
    needs: Needs | None = None  # more of these would narrow the interval; None unless it is unclear

    def __str__(self) -> str:
        """Return it as JSON has it: `collapsed`, `unclear (needs more seeds)`."""
        return self.word if self.needs is None else f"{self.word} (needs more {self.needs})"


def verdict(change: Estimate) -> ChangeVerdict:
    """Return the verdict on a change against the crop line, in bits per byte; lower is better.

    If the interval crosses SAME_MARGIN, the word is `unclear`, and `needs` says what would narrow it:
    whichever of seeds and documents has the wider part of it. For a single seed, and below MIN_DOCUMENTS
    (where there is no interval), that is documents.
    """
    interval = change.interval()
    half_widths = change.half_widths(1 - CONFIDENCE)
    if interval is None or half_widths is None:
        return ChangeVerdict(UNCLEAR_WORD, "documents")
    low, high = interval
    # The strongest word that the whole interval supports: a row that surely collapsed is surely worse, too.
    if low > COLLAPSED_MARGIN:
        return ChangeVerdict(COLLAPSED_WORD)
    if low > SAME_MARGIN:
        return ChangeVerdict(WORSE_WORD)
    if high < -SAME_MARGIN:
        return ChangeVerdict(BETTER_WORD)
    if low >= -SAME_MARGIN and high <= SAME_MARGIN:
        return ChangeVerdict(SAME_WORD)
    seed_half, document_half = half_widths
    return ChangeVerdict(UNCLEAR_WORD, "seeds" if seed_half > document_half else "documents")
