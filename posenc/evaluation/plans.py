"""What a protocol is asked for, and the text it scores: chosen from the documents, never from a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from posenc.data import TokenStore
from posenc.evaluation.subject import Subject, Sums


@dataclass(frozen=True)
class Asked:
    """What every protocol makes its plan from. Lengths in tokens."""

    store: TokenStore
    split: str
    windows: Sequence[int]
    train_length: int  # T
    target_fraction: float  # fixed-target: targets a window, as a share of T
    max_targets: int
    stride: int  # sliding

    @property
    def lengths(self) -> np.ndarray:
        """Of the split's documents: (N,) int64."""
        return self.store.splits[self.split].lengths

    @property
    def longest(self) -> int:
        """The longest window: it decides which text can be scored."""
        return max(self.windows)

    @property
    def extrapolating(self) -> list[int]:
        """The windows beyond T."""
        return [window for window in self.windows if window > self.train_length]

    def digest(self, *parts: object) -> str:
        """A hash of the text, what its tokens are, and of what was chosen: 16 hex digits."""
        tokenizer = hashlib.sha256(repr(self.store.tokenizer).encode()).hexdigest()[:16]
        digest = hashlib.sha256(f"{self.store.fingerprint} {self.split} {tokenizer}".encode())
        for part in parts:
            array = isinstance(part, np.ndarray)
            digest.update(part.astype("<i8").tobytes() if array else f" {part}".encode())  # type: ignore[attr-defined]
        return digest.hexdigest()[:16]


class Planned(Protocol):
    """A plan: whatever a protocol needs to know, and the hash of its targets."""

    @property
    def hash(self) -> str: ...

    def tokens(self, window: int) -> int:
        """How many go through the model for a cell at this window, about: what its time goes with."""
        ...


class ProtocolModule(Protocol):
    """What a protocol's module offers; it may also have UNIT (of its nats; or `unit` in
    its plan) and windows_of(asked).
    """

    NAME: str

    def plan(self, asked: Asked) -> Planned: ...

    def measure(
        self, subject: Subject, plan: Planned, window: int, check_stop: Callable[[], None]
    ) -> Sums: ...


def windows_of(module: ProtocolModule, asked: Asked) -> list[int]:
    """The windows that a protocol measures: all that are asked for, unless it has a word of its own."""
    own = getattr(module, "windows_of", None)
    return list(asked.windows) if own is None else list(own(asked))


@dataclass(frozen=True)
class Spans:
    """Stretches of text: targets starts[i]+1 .. starts[i]+span of document documents[i]."""

    documents: np.ndarray  # (N,) int64, index in the split
    starts: np.ndarray  # (N,) int64, in tokens of the document
    span: int  # targets in each
    hash: str

    def tokens(self, window: int) -> int:
        """Each once, whatever the window."""
        return len(self.documents) * self.span


def plan_spans(asked: Asked) -> Spans:
    """Stretches as long as the longest window, about `max_targets` targets in all, the same for all protocols
    that score text in one piece, so that nothing but their windows tells them apart.

    They have a longest window of text before them where the document is long enough. At most the median
    number a document, spread evenly over it.
    """
    span = asked.longest
    pieces = np.maximum(0, (asked.lengths - 1) // span)
    candidates = np.where(pieces > 1, pieces - 1, pieces)  # without the first, where there is another
    chosen = blocks_by_document(candidates, max(1, asked.max_targets // span))
    documents = np.repeat(np.arange(len(pieces)), chosen)
    starts = [
        span * (spread(have, take) + int(all_ > 1))
        for all_, have, take in zip(pieces, candidates, chosen, strict=True)
    ]
    begins = np.concatenate([np.zeros(0, dtype=np.int64), *starts])
    return Spans(documents, begins, span, asked.digest("spans", span, documents, begins))


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
    chosen = np.minimum(candidates, low).astype(np.int64)
    if chosen.sum() > most:  # even one a document is too many: every n-th document
        have = np.flatnonzero(chosen)
        chosen = np.zeros_like(chosen)
        chosen[have[spread(len(have), most)]] = 1
    return chosen


def spread(have: int, take: int) -> np.ndarray:
    """`take` of the indices 0..have-1, evenly spaced, ends included: (take,) int64."""
    return np.round(np.linspace(0, max(0, have - 1), take)).astype(np.int64)
