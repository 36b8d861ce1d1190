"""Training windows, drawn so that a step's batch depends on nothing but the seed and the step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posenc.core.errors import UserError
from posenc.core.seeds import raw_draws
from posenc.data.token_cache import TokenStore


class WindowSampler:
    """Windows of `context_length` tokens inside training documents, uniform over all places; by counter."""

    def __init__(self, store: TokenStore, context_length: int, seed: int) -> None:
        """Raises UserError when no training document holds `context_length` + 1 tokens."""
        split = store.splits["train"]
        fits = split.lengths > context_length  # the last target lies one place after the last input
        if not fits.any():
            longest = int(split.lengths.max(initial=0)) - 1
            problem, hint = "no training document is that long", f"the longest that works is {longest}"
            raise UserError("context_length", context_length, problem, hint=hint)
        self._tokens = store.tokens
        self._starts = split.starts[fits]
        places = split.lengths[fits] - context_length
        self._ends = np.cumsum(places)  # of each document's places, all laid end to end
        self._first = self._ends - places
        self._offsets = np.arange(context_length + 1, dtype=np.int64)
        self._seed = seed % 2**64

    def batch(self, step: int, size: int) -> tuple[np.ndarray, ...]:
        """Inputs and targets of a step, both int64 `(size, context_length)`; targets are one token on."""
        place = (raw_draws(size, self._seed, step) % np.uint64(self._ends[-1])).astype(np.int64)
        document = np.searchsorted(self._ends, place, side="right")
        start = self._starts[document] + place - self._first[document]
        window = self._tokens[start[:, None] + self._offsets].astype(np.int64)  # (size, T + 1)
        return window[:, :-1], window[:, 1:]


class ScheduledSampler:
    """Windows that grow in the course of a run, a sampler for each stage; all batches have as many tokens."""

    def __init__(self, context_length: int, stages: Sequence[tuple[int, int, WindowSampler]]) -> None:
        """Take stages of (step at which it ends, its length, its sampler) in order."""
        self._context_length, self._stages = context_length, stages

    def batch(self, step: int, size: int) -> tuple[np.ndarray, ...]:
        """Return the batch of a step: `size` windows of `context_length` cut into those of its stage."""
        length, sampler = next((length, one) for end, length, one in self._stages if step < end)
        return sampler.batch(step, size * self._context_length // length)
