"""nonoverlapping: text cut into windows that do not overlap, every token scored. For comparison with papers.

Longer windows are rewarded for having fewer tokens with little context (the early-token curse), so this
curve can even have the wrong sign. The same tokens are scored at every length: spans of the longest window,
which every window length cuts from the left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from posenc.evaluation.fixed_target import blocks_by_document
from posenc.evaluation.subject import Subject, Sums, stopped_never, sums_by_document, window_losses

NAME = "nonoverlapping"


@dataclass(frozen=True)
class Plan:
    """Spans of text: span i has its first input at token starts[i] of document documents[i]."""

    documents: np.ndarray  # (N,) int64, index in the split
    starts: np.ndarray  # (N,) int64, in tokens of the document
    span: int  # targets a span
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
    """Spans of the longest window from the documents' start on, about `max_targets` targets in all."""
    span = max(windows)
    candidates = np.maximum(0, (lengths - 1) // span)
    chosen = blocks_by_document(candidates, max(1, max_targets // span))
    documents = np.repeat(np.arange(len(lengths)), chosen)
    starts = np.concatenate([span * np.arange(take) for take in chosen])
    digest = hashlib.sha256(f"{NAME} {identity} {span}".encode())
    digest.update(documents.astype("<i8").tobytes())
    digest.update(starts.astype("<i8").tobytes())
    return Plan(documents, starts, span, digest.hexdigest()[:16])


def measure(
    subject: Subject, plan: Plan, window: int, check_stop: Callable[[], None] = stopped_never
) -> Sums:
    """Sum the loss of every target of every span, in windows of `window` tokens (the last may be shorter)."""
    store, split = subject.store, subject.store.splits[subject.split]
    begins = split.starts[plan.documents] + plan.starts  # in the store's tokens
    nats = np.zeros(len(begins))
    whole, rest = divmod(plan.span, window)
    for length, offsets in ((window, window * np.arange(whole)), (rest, np.array([window * whole]))):
        if length == 0 or len(offsets) == 0:
            continue
        firsts = (begins[:, None] + offsets[None, :]).ravel()  # (spans * windows,)

        def read(i: int, firsts: np.ndarray = firsts, length: int = length) -> np.ndarray:
            return store.tokens[firsts[i] : firsts[i] + length + 1]

        losses = window_losses(subject, read, len(firsts), length, length, check_stop)
        nats += losses.sum(axis=1).reshape(len(begins), len(offsets)).sum(axis=1)
    targets = np.full(len(begins), plan.span)
    byte_counts = store.bytes_between(begins + 1, begins + 1 + plan.span)
    return sums_by_document(plan.documents, nats, targets, byte_counts)
