"""fixed-target: the same target tokens at every window length, so that only the text before them changes.

A target block is the last b tokens of a window. Every block has at least longest + 1 tokens up to its end in
its own document (the extra one is the first input), whatever the window that is being measured, and windows
of every length end where the block ends. At W = T no position lies beyond the training length: that record
is the crop line, what somebody gets who cuts the context to the training length.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from posenc.errors import UserError
from posenc.evaluation.subject import Subject, Sums, stopped_never, sums_by_document, window_losses

NAME = "fixed-target"


@dataclass(frozen=True)
class Plan:
    """Which targets are scored: block i ends before token ends[i] of document documents[i]."""

    documents: np.ndarray  # (N,) int64, index in the split
    ends: np.ndarray  # (N,) int64, exclusive, in tokens of the document
    block: int  # b, targets a block
    hash: str


def plan(
    lengths: np.ndarray,
    windows: Sequence[int],
    *,
    train_length: int,
    target_fraction: float,
    max_targets: int,
    identity: str,
) -> Plan:
    """Choose the blocks from the documents' lengths (N,) in tokens; they do not depend on model or seed.

    At most the median number of blocks a document, spread evenly over it, and about `max_targets` targets
    in all. Raises UserError for a window shorter than the block.
    """
    block = max(1, round(target_fraction * train_length))
    if min(windows) < block:
        raise UserError(
            "eval.lengths",
            min(windows),
            f"shorter than the target block of {block} tokens (eval.target_fraction * context_length)",
            allowed=f"lengths from {block}",
        )
    first = max(windows) + 1  # the earliest end
    candidates = np.maximum(0, (lengths - first) // block + 1)  # blocks that fit, by document
    chosen = blocks_by_document(candidates, max(1, max_targets // block))
    documents = np.repeat(np.arange(len(lengths)), chosen)
    ends = np.concatenate(
        [first + block * _spread(have, take) for have, take in zip(candidates, chosen, strict=True)]
    )
    digest = hashlib.sha256(f"{NAME} {identity} {block}".encode())
    digest.update(documents.astype("<i8").tobytes())
    digest.update(ends.astype("<i8").tobytes())
    return Plan(documents, ends, block, digest.hexdigest()[:16])


def blocks_by_document(candidates: np.ndarray, most: int) -> np.ndarray:
    """How many blocks of each document are scored: (N,) int64, at most their median and `most` in all.

    No document may dominate, or the interval over documents would say little.
    """
    eligible = candidates[candidates > 0]
    if len(eligible) == 0:
        return np.zeros(len(candidates), dtype=np.int64)
    low, high = 1, max(1, int(np.median(eligible)))
    while low < high:  # the largest cap up to the median that keeps to `most`
        cap = (low + high + 1) // 2
        low, high = (cap, high) if np.minimum(candidates, cap).sum() <= most else (low, cap - 1)
    cap = low
    chosen = np.minimum(candidates, cap).astype(np.int64)
    if chosen.sum() > most:  # even one a document is too many: every n-th document
        have = np.flatnonzero(chosen)
        chosen = np.zeros_like(chosen)
        chosen[have[_spread(len(have), most)]] = 1
    return chosen


def _spread(have: int, take: int) -> np.ndarray:
    """`take` of the indices 0..have-1, evenly spaced, ends included: (take,) int64."""
    return np.round(np.linspace(0, max(0, have - 1), take)).astype(np.int64)


def measure(
    subject: Subject, plan: Plan, window: int, check_stop: Callable[[], None] = stopped_never
) -> Sums:
    """Sum the loss of every target, each seen at the end of a window of `window` tokens."""
    store, split = subject.store, subject.store.splits[subject.split]
    stops = split.starts[plan.documents] + plan.ends  # in the store's tokens

    def read(i: int) -> np.ndarray:
        return store.tokens[stops[i] - window - 1 : stops[i]]

    nats = window_losses(subject, read, len(stops), window, plan.block, check_stop)
    targets = np.full(len(stops), plan.block)
    byte_counts = store.bytes_between(stops - plan.block, stops)
    return sums_by_document(plan.documents, nats.sum(axis=1), targets, byte_counts)
