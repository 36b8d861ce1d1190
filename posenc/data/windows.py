"""Draw training windows. The batch of a step depends on the seed and the step alone.

Shapes: B windows, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from posenc.core.seeds import raw_draws
from posenc.data.token_cache import Ints, TokenStore

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """The windows of one step. All arrays are (B, T)."""

    inputs: Ints
    targets: Ints  # the inputs, moved on by one token
    weights: Floats | None = None  # how much each target counts in the loss; None: all count the same
    kinds: Ints | None = None  # TEXT, PLANTED or KNOWN (see planted.py); None without planted pairs

    @property
    def n_windows(self) -> int:
        """Return B. If windows grow during a run, short windows are more than long ones."""
        return len(self.inputs)


class NumberedWindows:
    """Number all windows of `context_length` tokens that lie inside the documents of a split."""

    def __init__(self, store: TokenStore, split_name: str, context_length: int) -> None:
        split = store.splits[split_name]
        fits = split.lengths > context_length  # the last target lies one token behind the last input
        self._tokens = store.tokens
        self._document_starts = split.starts[fits]
        windows_per_document = split.lengths[fits] - context_length
        # Windows are numbered document by document. If the documents have 3 and 2 windows, the first numbers
        # are 0 and 3, and the end numbers 3 and 5.
        self._end_numbers = np.cumsum(windows_per_document)
        self._first_numbers = self._end_numbers - windows_per_document
        self._offsets = np.arange(context_length + 1, dtype=np.int64)

    def __len__(self) -> int:
        """Return how many windows there are."""
        return int(self._end_numbers[-1]) if len(self._end_numbers) else 0

    def read(self, numbers: Ints) -> Ints:
        """Return the windows with these numbers (N,), each with its last target: (N, T + 1)."""
        # `right`, since an end number is the first number of the next document.
        documents = np.searchsorted(self._end_numbers, numbers, side="right")
        offsets_in_documents = numbers - self._first_numbers[documents]
        starts = self._document_starts[documents] + offsets_in_documents
        # One look-up for the whole batch: reading a window at a time takes a step of Python for each.
        windows: Ints = self._tokens[starts[:, None] + self._offsets].astype(np.int64)  # (N, T + 1)
        return windows

    def spread(self, count: int) -> Ints:
        """Return `count` windows at even distances, (count, T + 1), or all if there are fewer."""
        count = min(count, len(self))
        # The middle of each of `count` equal parts. Nothing is drawn, so every run has the same windows.
        halves = 2 * np.arange(count, dtype=np.int64) + 1  # middles of the parts, in halves of a part
        numbers = halves * len(self) // (2 * max(1, count))
        return self.read(numbers)


class WindowSampler:
    """Draw windows of `context_length` tokens inside training documents, uniformly over all that fit."""

    def __init__(self, store: TokenStore, context_length: int, seed: int) -> None:
        self._numbered = NumberedWindows(store, "train", context_length)
        self._seed = seed % 2**64  # the random generator takes an unsigned number of 64 bits

    def batch(self, step: int, size: int) -> Batch:
        """Return the batch of a step: `size` windows of `context_length` tokens."""
        windows = self._windows(step, size)  # (size, T + 1)
        return Batch(inputs=windows[:, :-1], targets=windows[:, 1:])

    def _windows(self, step: int, size: int) -> Ints:
        """Return the windows of a step, each with its last target: (size, T + 1)."""
        # By seed and step, so that a resumed run goes on with the windows that it would have had.
        draws = raw_draws(size, self._seed, step)  # (size,)
        # The remainder prefers low numbers, but by less than (number of windows) / 2^64.
        numbers = (draws % np.uint64(len(self._numbered))).astype(np.int64)  # (size,)
        return self._numbered.read(numbers)


@dataclass(frozen=True)
class Stage:
    """Describe a stage of the training, with windows of one length. Each stage has another length."""

    last_step: int  # the stage ends with this update; the first update of a run is number 1
    length: int  # tokens


def stage_of(stages: Sequence[Stage], update: int) -> Stage:
    """Return the stage of an update, by its number from 1."""
    return next(stage for stage in stages if update <= stage.last_step)


class ScheduledSampler:
    """Draw windows that grow during a run. All batches have the same number of tokens."""

    def __init__(self, stages: Sequence[Stage], samplers: Mapping[int, WindowSampler]) -> None:
        """Take the stages in their order, and the sampler of each window length."""
        self._stages = stages
        self._samplers = samplers

    def batch(self, step: int, size: int) -> Batch:
        """Return the batch of a step, from 0: as many tokens as in `size` windows of the last stage."""
        length = stage_of(self._stages, step + 1).length
        tokens = size * self._stages[-1].length
        # As many tokens in each step, so that learning rate and schedule mean the same in all stages.
        return self._samplers[length].batch(step, tokens // length)
