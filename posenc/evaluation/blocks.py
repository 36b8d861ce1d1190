"""Choose blocks of text whose tokens are scored, by the lengths of the documents alone.

A few long documents must not decide a number, since its interval is made over documents. So no document gives
more blocks than the median document has, and the blocks of a document are spread evenly over it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from posenc.evaluation.request import Plan
from posenc.evaluation.sums import LossSums, sums_by_document

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext


@dataclass(frozen=True, kw_only=True)
class Blocks(Plan):
    """Targets in N blocks. Block i is the `block` tokens before token ends[i] of document documents[i]."""

    documents: np.ndarray  # (N,) int64, index in the split
    ends: np.ndarray  # (N,) int64, exclusive, in tokens of the document
    block: int  # tokens

    def tokens(self, window: int) -> int:
        """Count the tokens of one window for each block, or of the block if that is longer."""
        return len(self.documents) * max(window, self.block)

    def targets_in(self, window: int) -> int:
        return self.block

    def count_targets(self, window: int) -> int:
        # Not by windows: those of `sliding` and `nonoverlapping` may end with a shorter one.
        return len(self.documents) * self.block

    def stops(self, context: EvalContext) -> np.ndarray:
        """Return the end of each block in the tokens of the store: (N,) int64, exclusive."""
        return context.document_starts[self.documents] + self.ends

    def sums(self, context: EvalContext, nats: np.ndarray) -> LossSums:
        """Add up the losses by document; nats (N,) are the losses of whole blocks."""
        stops = self.stops(context)
        byte_counts = context.store.bytes_between(stops - self.block, stops)
        targets = np.full(len(stops), self.block)
        return sums_by_document(self.documents, nats, targets, byte_counts)


def measure_blocks(context: EvalContext, plan: Blocks, window: int) -> LossSums:
    """Sum the loss of every target, each block at the end of a window of `window` tokens."""
    nats = context.text_losses(plan.stops(context), window, plan.block)  # (N, block)
    return plan.sums(context, nats.sum(axis=1))


def choose_blocks(candidates: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose at most `most` blocks. candidates (documents,) says how many each document offers.

    Returns two arrays (N,) int64: the document of each chosen block, and its ordinal number, from 0, among
    the candidates of that document. The chosen ones are spread evenly over the candidates.
    """
    counts = blocks_by_document(candidates, most)
    documents = np.repeat(np.arange(len(candidates)), counts)
    ordinals = [np.zeros(0, dtype=np.int64)]  # an empty first part, since there may be no documents
    for available, count in zip(candidates, counts, strict=True):
        ordinals.append(evenly_spaced(available, count))
    return documents, np.concatenate(ordinals)


# Without the cap, a 95% interval over very unequal documents covered 71 to 86% in simulations
# (scripts/checks/intervals.py).
def blocks_by_document(candidates: np.ndarray, most: int) -> np.ndarray:
    """Choose how many blocks each document gives: (documents,) int64, at most `most` in all.

    No document gives more than the median has, which is taken over the documents that have any.
    """
    has_blocks = candidates > 0
    if not has_blocks.any():
        return np.zeros(len(candidates), dtype=np.int64)
    median = int(np.median(candidates[has_blocks]))

    def total_if_capped_at(cap: int) -> int:
        return int(np.minimum(candidates, cap).sum())

    # The largest cap from 1 to the median with which the total is at most `most`; else 1, looked at below.
    caps_above_1 = range(2, median + 1)
    cap = 1 + bisect_right(caps_above_1, most, key=total_if_capped_at)
    counts = np.minimum(candidates, cap).astype(np.int64)
    if counts.sum() <= most:
        return counts
    # Even one block a document is too many, so documents are left out, evenly.
    documents = np.flatnonzero(counts)
    counts = np.zeros_like(counts)
    counts[documents[evenly_spaced(len(documents), most)]] = 1
    return counts


def evenly_spaced(available: int, count: int) -> np.ndarray:
    """Choose `count` of the indices 0..available-1, evenly spaced, both ends included: (count,) int64."""
    return np.round(np.linspace(0, max(0, available - 1), count)).astype(np.int64)
