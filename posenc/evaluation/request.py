"""The request to a protocol, and the plan that it answers with: which tokens are scored.

A plan depends on documents and lengths alone, never on a model, so that every model, seed and window is
scored on the same tokens. Its hash identifies them: records are compared only where their hashes are equal.
`recall` alone draws its windows by the run's seed; its hash says what they are drawn from.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from posenc.evaluation.lengths import EvalLengths
from posenc.settings.tree import PlantSettings

if TYPE_CHECKING:
    from posenc.data import TokenStore
    from posenc.data.tokenizers import Tokenizer


@dataclass(frozen=True, kw_only=True)
class EvalRequest:
    """The text, the windows and the number of targets, from which every protocol makes its plan."""

    store: TokenStore
    split: str
    lengths: EvalLengths
    max_targets: int  # for each window, about
    tokenizer: Tokenizer | None = None  # for protocols that write words into the text
    plant: PlantSettings | None = None  # key-value pairs in the text that the model was trained on
    seed: int = 0  # of the run, for what a protocol draws anew for each seed

    @property
    def document_lengths(self) -> np.ndarray:
        """Return the lengths of the split's documents in tokens: (N,) int64."""
        return self.store.splits[self.split].lengths

    def count_window_ends(self) -> np.ndarray:
        """Return how many ends each document has for a longest window and its last target: (N,) int64.

        The first of them is at token `longest + 1` of the document, exclusive.
        """
        return np.maximum(0, self.document_lengths - self.lengths.longest)

    def digest(self, *parts: object) -> str:
        """Hash the text, its tokenizer and the parts, which say what was chosen: 16 hex digits."""
        tokenizer = hashlib.sha256(repr(self.store.tokenizer).encode()).hexdigest()[:16]
        digest = hashlib.sha256(f"{self.store.fingerprint} {self.split} {tokenizer}".encode())
        for part in parts:
            if isinstance(part, np.ndarray):
                digest.update(part.astype("<i8").tobytes())
            else:
                digest.update(f" {part}".encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """The tokens that a protocol scores. Subclasses add the fields by which they are found in the text."""

    hash: str  # of the text and of the scored tokens
    stride: int | None = None  # tokens between neighbouring windows, where the windows of a protocol overlap

    @abstractmethod
    def tokens(self, window: int) -> int:
        """Count the tokens that go through the model at this window. `--dry-run` estimates time by it."""

    def tokens_beside(self, window: int) -> int:
        """Count the tokens of passes beside that over the windows, which `tokens` includes."""
        return 0

    @abstractmethod
    def targets_in(self, window: int) -> int:
        """Return how many tokens of one window are scored."""
