"""Tokenizers: bytes, a byte-level BPE trained on the corpus, or any of the `tokenizers` library.

Each says how many bytes of text every token stands for, so that bits per byte can be told for all of them.
No special tokens are ever added.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from posenc.data.documents import Document

log = logging.getLogger(__name__)
Encoded = tuple[npt.NDArray[Any], npt.NDArray[Any] | None]
BATCH = 64  # documents handed to the library's threads at once,
BATCH_BYTES = 2**21  # or fewer, where they are long: it takes 100 to 300 times the memory of the text


class Tokenizer(Protocol):
    """`vocab_size` ids, and a plain JSON identity that is hashed into cache keys and runs."""

    name: str
    vocab_size: int
    definition: str | None  # its JSON, where it is more than its name

    def identity(self) -> dict[str, Any]: ...

    def encode(self, text: bytes) -> Encoded:
        """Ids, and the bytes of `text` each stands for (None: one each); they sum to `len(text)`."""

    def encode_all(self, texts: Iterable[bytes]) -> Iterator[Encoded]: ...


class Text(Protocol):
    """What a tokenizer may be trained on: `CorpusFacts`."""

    train_fingerprint: str

    def read(self) -> Iterable[Document]: ...


class ByteTokenizer:
    """One token a byte."""

    name = "bytes"
    vocab_size = 256
    definition: str | None = None

    def identity(self) -> dict[str, Any]:
        return {"name": self.name}

    def encode(self, text: bytes) -> Encoded:
        return np.frombuffer(text, dtype=np.uint8), None

    def encode_all(self, texts: Iterable[bytes]) -> Iterator[Encoded]:
        return map(self.encode, texts)


class LibraryTokenizer:
    """A tokenizer of the `tokenizers` library from its JSON."""

    def __init__(self, name: str, definition: str) -> None:
        from tokenizers import Tokenizer as Library

        self.name = name
        self.definition: str | None = definition
        self._library = Library.from_str(definition)
        self._library.no_truncation()
        self._library.no_padding()
        ids = self._library.get_vocab(with_added_tokens=True).values()
        self.vocab_size: int = max(ids, default=-1) + 1  # not their number: a pruned vocabulary has gaps

    def identity(self) -> dict[str, Any]:
        """What it is, not how it came about: a trained one and its copy in a run are one tokenizer."""
        return {"name": "tokenizers", "sha256": hashlib.sha256(str(self.definition).encode()).hexdigest()}

    def encode(self, text: bytes) -> Encoded:
        return next(self.encode_all([text]))

    def encode_all(self, texts: Iterable[bytes]) -> Iterator[Encoded]:
        for batch in _batches(texts):
            encodings = self._library.encode_batch(
                [text.decode("utf-8") for text in batch], add_special_tokens=False
            )
            for text, encoding in zip(batch, encodings, strict=True):
                ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
                yield np.array(encoding.ids, dtype=np.uint32), bytes_per_token(text, ends)


def _batches(texts: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if len(batch) == BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def bytes_per_token(text: bytes, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Bytes of UTF-8 each token stands for, from where each ends in characters.

    A token has what lies between the furthest end before it and its own; what no token covers goes to the
    next one, and the rest of the text to the last. So the sum is `len(text)` for any tokenizer.
    """
    if not len(ends):
        return np.zeros(0, dtype=np.uint32)
    is_start = (np.frombuffer(text, dtype=np.uint8) & 0xC0) != 0x80
    byte_at = np.append(np.flatnonzero(is_start), len(text))  # of each character; the end last
    reached = np.maximum.accumulate(byte_at[ends])
    reached[-1] = len(text)
    return np.diff(reached, prepend=0).astype(np.uint32)
