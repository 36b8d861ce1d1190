"""The request to a protocol and its plan: which text is scored, chosen from documents, never from a model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from posenc.data import TokenStore
from posenc.evaluation.forward_cache import EvalContext, LossSums, sums_by_document, text_losses


@dataclass(frozen=True)
class RecallGrid:
    """What `recall` asks for: distances in tokens, numbers of pairs, windows for each of both."""

    distances: Sequence[int]
    pairs: Sequence[int]
    windows: int


@dataclass(frozen=True)
class EvalRequest:
    """What every protocol makes its plan from; lengths in tokens."""

    store: TokenStore
    split: str
    windows: Sequence[int]
    train_length: int  # T
    target_fraction: float  # fixed-target: targets a window, as a share of the base length
    max_targets: int
    stride: int  # sliding
    recall: RecallGrid | None = None
    plant: Mapping[str, Any] | None = None  # what was planted in the text that the model was trained on
    key_tokens: Callable[[Blocks], np.ndarray | None] | None = None  # which of fixed-target's targets are key
    base_length: int | None = None  # the T whose targets are measured; None: the model's own

    @property
    def lengths(self) -> np.ndarray:
        """Lengths of the split's documents: (N,) int64."""
        return self.store.splits[self.split].lengths

    @property
    def base(self) -> int:
        """The T that targets are chosen for: the same ones for models of several training lengths."""
        return self.base_length or self.train_length

    @property
    def longest(self) -> int:
        """The longest window, which decides what text can be scored."""
        return max(self.windows)

    @property
    def extrapolating(self) -> list[int]:
        """The windows beyond T."""
        return [window for window in self.windows if window > self.train_length]

    def digest(self, *parts: object) -> str:
        """Hash the text, its tokenizer and what was chosen: 16 hex digits."""
        tokenizer = hashlib.sha256(repr(self.store.tokenizer).encode()).hexdigest()[:16]
        digest = hashlib.sha256(f"{self.store.fingerprint} {self.split} {tokenizer}".encode())
        for part in parts:
            array = isinstance(part, np.ndarray)
            digest.update(part.astype("<i8").tobytes() if array else f" {part}".encode())  # type: ignore[attr-defined]
        return digest.hexdigest()[:16]


def windows_of(module: ModuleType, request: EvalRequest) -> list[int]:
    """Return the windows that a protocol measures: all, unless its module has a `windows_of`."""
    own = getattr(module, "windows_of", None)
    return list(request.windows) if own is None else list(own(request))


@dataclass(frozen=True)
class Blocks:
    """Targets in blocks: block i is the last `block` tokens before token ends[i] of document documents[i]."""

    documents: np.ndarray  # (N,) int64, index in the split
    ends: np.ndarray  # (N,) int64, exclusive, in tokens of the document
    block: int
    hash: str
    stride: int | None = None  # sliding: each step of so many targets has a window of its own

    def tokens(self, window: int) -> int:
        """Count the tokens that go through the model at this window, of each block or each step.

        A block longer than the window goes through whole: in one piece, or cut into windows.
        """
        size = max(window, self.block) if self.stride is None else window * -(-self.block // self.stride)
        return len(self.documents) * size

    def sums(self, context: EvalContext, nats: np.ndarray) -> LossSums:
        """Add up the losses (N,) of the blocks by document."""
        ends = context.starts[self.documents] + self.ends
        sizes = context.store.bytes_between(ends - self.block, ends)
        return sums_by_document(self.documents, nats, np.full(len(ends), self.block), sizes)


def measure_blocks(context: EvalContext, plan: Blocks, window: int) -> LossSums:
    """Sum the loss of every target, each block at the end of a window of `window` tokens."""
    nats = text_losses(context, context.starts[plan.documents] + plan.ends, window, plan.block)
    return plan.sums(context, nats.sum(axis=1))


def plan_spans(request: EvalRequest) -> Blocks:
    """Choose blocks as long as the longest window, about `max_targets` targets in all.

    The protocols that score text in one piece share them, so that they differ by their windows alone. A
    stretch has a longest window of text before it where the document is long enough. At most the median
    number a document, spread evenly over it.
    """
    span = request.longest
    pieces = np.maximum(0, (request.lengths - 1) // span)
    candidates = np.where(pieces > 1, pieces - 1, pieces)  # without the first, where there is another
    documents, places = choose(candidates, max(1, request.max_targets // span))
    begins = span * (places + (pieces > 1)[documents])
    digest = request.digest("spans", span, documents, begins)
    return Blocks(documents, begins + 1 + span, span, digest)


def choose(candidates: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose blocks as `blocks_by_document`, evenly spread over each document's candidates.

    Return the document of each block and its place among that document's candidates: (N,) int64 each.
    """
    chosen = blocks_by_document(candidates, most)
    parts = [spread(have, take) for have, take in zip(candidates, chosen, strict=True)]
    return np.repeat(np.arange(len(candidates)), chosen), np.concatenate([np.zeros(0, np.int64), *parts])


def blocks_by_document(candidates: np.ndarray, most: int) -> np.ndarray:
    """Choose how many blocks of each document are scored: (N,) int64, at most their median and `most` in all.

    The median, since the interval over documents says little when one dominates.
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
    """Choose `take` of the indices 0..have-1, evenly spaced, ends included: (take,) int64."""
    return np.round(np.linspace(0, max(0, have - 1), take)).astype(np.int64)
