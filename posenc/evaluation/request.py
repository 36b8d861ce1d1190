"""The request to a protocol, and the plan that it answers with: which tokens are scored.

A plan depends on documents and lengths alone, never on a model, so that every model, seed and window is
scored on the same tokens. Its hash identifies them: records are compared only where their hashes are equal.
The exception is `recall`. It draws its windows by the run's seed, and its hash covers what it draws from.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from posenc.evaluation.lengths import EvalLengths
from posenc.settings.tree import PlantSettings

if TYPE_CHECKING:
    from posenc.data import TokenStore
    from posenc.data.tokenizers import Tokenizer


@dataclass(frozen=True, kw_only=True)
class EvalRequest:
    """What every protocol makes its plan from: the text, the windows and the number of targets."""

    store: TokenStore
    split: str
    lengths: EvalLengths
    max_targets: int  # about how many tokens are scored at each window
    tokenizer: Tokenizer | None = None  # for protocols that write words into the text
    plant: PlantSettings | None = None  # key-value pairs in the text that the model was trained on
    seed: int = 0  # of the run; only `recall` draws by it

    @property
    def document_lengths(self) -> np.ndarray:
        """Return the lengths of the split's documents in tokens: (N,) int64."""
        return self.store.splits[self.split].lengths

    def count_window_ends(self) -> np.ndarray:
        """Return at how many places of each document the longest window may end: (N,) int64.

        Its last target follows its inputs, so the first of these ends is `longest + 1`, exclusive.
        """
        # A document of `longest + 1` tokens has one such place: all its tokens but the last are inputs.
        return np.maximum(0, self.document_lengths - self.lengths.longest)

    def digest(self, *parts: object) -> str:
        """Hash the text, its tokenizer and `parts`, by which a protocol says what it chose: 16 hex digits."""
        # By the whole description and not by the name: `hf` is the name of all tokenizers of the hub.
        tokenizer_hash = hashlib.sha256(repr(self.store.tokenizer).encode()).hexdigest()[:16]
        digest = hashlib.sha256(f"{self.store.fingerprint} {self.split} {tokenizer_hash}".encode())
        for part in parts:
            if isinstance(part, np.ndarray):
                digest.update(part.astype("<i8").tobytes())  # the same bytes on every machine
            else:
                digest.update(f" {part}".encode())
        # 64 bits: even among millions of records two equal hashes are improbable.
        return digest.hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """The tokens that a protocol scores. The fields of a subclass say where in the text they are."""

    hash: str  # of the text and of the scored tokens
    stride: int | None = None  # tokens from one window to the next, if the windows overlap
    keeps_keys: ClassVar[bool] = False  # the model writes, and keeps keys and values of a window for that

    @property
    def passes_key(self) -> Hashable:
        """Return what tells the passes over windows of one length from those of another plan."""
        return self.hash, self.stride

    @abstractmethod
    def tokens(self, window: int) -> int:
        """Count the tokens that go through the model at this window. `--dry-run` estimates time by it."""

    def tokens_of_other_passes(self, window: int) -> int:
        """Count those of `tokens` that are in further passes, not in that over the windows."""
        return 0

    def check_fits(self, window: int) -> None:  # noqa: B027 - most plans fit into every window
        """Raise NotApplicableError if nothing can be scored in a window of this length."""

    @abstractmethod
    def targets_in(self, window: int) -> int:
        """Return how many last tokens of one window get a loss: its targets and what stands between them."""

    @abstractmethod
    def count_targets(self, window: int) -> int:
        """Count the targets of the record at this window. `--dry-run` shows them; 0 where nothing fits."""
