"""Tokens on disk, mapped into memory: one array for the whole corpus, with where each document lies in it."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """The documents of a split, ordered by id: `starts` in the token array and `lengths`, in tokens."""

    ids: list[str]
    starts: Ints
    lengths: Ints


@dataclass(frozen=True)
class TokenStore:
    """A tokenised corpus. `tokens` and `token_bytes` are read-only and mapped from files.

    `token_bytes` holds the bytes of text each token stands for; None means one each.
    """

    tokens: npt.NDArray[Any]  # uint8, uint16 or uint32, as the vocabulary needs
    token_bytes: npt.NDArray[Any] | None  # uint16, or uint32 where a token can be longer
    fingerprint: str
    vocab_size: int
    tokenizer: dict[str, Any]
    splits: Mapping[str, Split]

    def document(self, split: str, i: int) -> npt.NDArray[Any]:
        """The tokens of a split's i-th document: a view, not a copy."""
        documents = self.splits[split]
        start = int(documents.starts[i])
        return self.tokens[start : start + int(documents.lengths[i])]

    def token_bytes_of(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Bytes of text of each token in `tokens[start:stop]`, int64."""
        if self.token_bytes is None:
            return np.ones(stop - start, dtype=np.int64)
        return self.token_bytes[start:stop].astype(np.int64)

    def bytes_between(self, starts: Ints, stops: Ints) -> Ints:
        """Bytes of text in each `tokens[starts[i]:stops[i]]`, int64."""
        if self.token_bytes is None:
            return np.asarray(stops - starts, dtype=np.int64)
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        sums = [int(self.token_bytes[a:b].sum(dtype=np.int64)) for a, b in spans]
        return np.array(sums, dtype=np.int64)


def smallest_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds every id."""
    return np.dtype(np.uint8 if vocab_size <= 2**8 else np.uint16 if vocab_size <= 2**16 else np.uint32)


def mapped(path: Path, dtype: str) -> npt.NDArray[Any]:
    """A read-only array over a file's bytes. Raises OSError; ValueError for an empty file."""
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=dtype)
