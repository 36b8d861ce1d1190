"""The token cache: tokens of a corpus in one array on disk, verified when opened, replaced as a whole.

`tokens/<key>/` holds `manifest.json`, `documents.json`, `tokens.bin` and, where tokens are not bytes,
`token_bytes.bin`. It is written in a temporary folder and renamed, so a kill leaves nothing half done.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from posenc.core.atomic_files import (
    canonical,
    digest_of,
    read_sealed,
    sha256_of_file,
    sync,
    write_sealed,
)
from posenc.core.errors import UserError
from posenc.core.paths import cache_dir
from posenc.data.documents import SPLITS, groups_of
from posenc.data.tokenizers import Tokenizer

LAYOUT = 2  # raised when the files below change their meaning
TOKENS, TOKEN_BYTES, DOCUMENTS = "tokens.bin", "token_bytes.bin", "documents.json"
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """The documents of a split, ordered by id: `starts` in the token array and `lengths`, in tokens."""

    ids: list[str]
    starts: Ints
    lengths: Ints

    @functools.cached_property
    def groups(self) -> Ints | None:
        """Number the group of each document; None where there are no groups."""
        groups = groups_of(self.ids)
        return None if groups is None else np.array(groups, dtype=np.int64)


@dataclass(frozen=True)
class TokenStore:
    """A tokenised corpus. `tokens` and `token_bytes` are read-only and mapped from files."""

    tokens: npt.NDArray[Any]  # uint8, uint16 or uint32, as the vocabulary needs
    token_bytes: npt.NDArray[Any] | None  # bytes of text of each token, uint16 or uint32; None: one each
    fingerprint: str
    vocab_size: int
    tokenizer: dict[str, Any]
    splits: Mapping[str, Split]

    @property
    def sizes(self) -> dict[str, list[int]]:
        """Tokens of each document, by split."""
        return {name: split.lengths.tolist() for name, split in self.splits.items()}

    def document(self, split: str, i: int) -> npt.NDArray[Any]:
        """Return the tokens of a split's i-th document: a view, not a copy."""
        documents = self.splits[split]
        start = int(documents.starts[i])
        return self.tokens[start : start + int(documents.lengths[i])]

    def token_bytes_of(self, start: int, stop: int) -> Ints:
        """Return the bytes of text of each token in `tokens[start:stop]`."""
        if self.token_bytes is None:
            return np.ones(stop - start, dtype=np.int64)
        return self.token_bytes[start:stop].astype(np.int64)

    def bytes_between(self, starts: Ints, stops: Ints) -> Ints:
        """Return the bytes of text in each `tokens[starts[i]:stops[i]]`."""
        if self.token_bytes is None:
            return np.asarray(stops - starts, dtype=np.int64)
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        sums = [int(self.token_bytes[a:b].sum(dtype=np.int64)) for a, b in spans]
        return np.array(sums, dtype=np.int64)


def smallest_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest unsigned type that holds every id."""
    return np.dtype(np.uint8 if vocab_size <= 2**8 else np.uint16 if vocab_size <= 2**16 else np.uint32)


def tokens_dir() -> Path:
    """Return the folder of all entries."""
    return cache_dir() / "tokens"


def entry_of(fingerprint: str, tokenizer: Mapping[str, Any]) -> Path:
    """Return where the tokens of a text lie, from its fingerprint and its tokenizer's identity."""
    return tokens_dir() / digest_of({"fingerprint": fingerprint, "tokenizer": tokenizer, "layout": LAYOUT})


class EntryWriter:
    """Take documents in the order of their ids within each split, then `finish`. All raise OSError."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        self.folder, self.tokenizer = folder, tokenizer
        self.dtype = smallest_dtype(tokenizer.vocab_size)
        self._rows: list[tuple[str, str, int]] = []
        self._files: dict[str, BinaryIO] = {}

    def add(self, document: str, split: str, ids: npt.NDArray[Any], sizes: npt.NDArray[Any] | None) -> None:
        """Append a document's tokens and the bytes each stands for (None: one each)."""
        self._write(TOKENS, ids.astype(self.dtype))
        if sizes is not None:
            self._write(TOKEN_BYTES, sizes.astype(np.uint32))
        self._rows.append((document, split, len(ids)))

    def finish(self, name: str, fingerprint: str) -> None:
        """Write the manifest and move the folder into place. Raises UserError where there is no text."""
        self.close()
        if not sum(length for _, _, length in self._rows):
            raise UserError("data", name, "holds no text")
        (self.folder / DOCUMENTS).write_bytes(canonical(self._rows))
        files = [*self._files, DOCUMENTS]
        for file in files:
            sync(self.folder / file)
        manifest = {
            "layout": LAYOUT,
            "corpus": name,
            "fingerprint": fingerprint,
            "tokenizer": self.tokenizer.identity(),
            "vocab_size": self.tokenizer.vocab_size,
            "dtype": self.dtype.newbyteorder("<").str,
            "files": {file: sha256_of_file(self.folder / file) for file in files},
        }
        write_sealed(self.folder / "manifest.json", manifest)
        entry = entry_of(fingerprint, self.tokenizer.identity())
        if open_entry(entry) is None:
            shutil.rmtree(entry, ignore_errors=True)
            self.folder.rename(entry)
            sync(entry.parent)

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def _write(self, file: str, values: npt.NDArray[Any]) -> None:
        if file not in self._files:
            self._files[file] = (self.folder / file).open("wb")
        self._files[file].write(values.tobytes())


@contextlib.contextmanager
def build_entry(key: str, tokenizer: Tokenizer) -> Iterator[EntryWriter]:
    """Yield a writer into a temporary folder that is removed afterwards; the caller holds the lock of `key`.

    So a folder that is there was left by a killed process. Raises OSError.
    """
    folder = tokens_dir() / f".{key}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    writer = EntryWriter(folder, tokenizer)
    try:
        yield writer
    finally:
        writer.close()
        shutil.rmtree(folder, ignore_errors=True)


def open_entry(entry: Path) -> TokenStore | None:
    """Return the store in a folder, or None when it is absent or a single bit of it has changed."""
    manifest = read_sealed(entry / "manifest.json")
    if manifest is None or manifest.get("layout") != LAYOUT:
        return None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        if any(sha256_of_file(entry / name) != digest for name, digest in manifest["files"].items()):
            return None
        has_bytes = TOKEN_BYTES in manifest["files"]
        return TokenStore(
            tokens=_mapped(entry / TOKENS, manifest["dtype"]),
            token_bytes=_mapped(entry / TOKEN_BYTES, "<u4") if has_bytes else None,
            fingerprint=manifest["fingerprint"],
            vocab_size=manifest["vocab_size"],
            tokenizer=manifest["tokenizer"],
            splits=_splits(json.loads((entry / DOCUMENTS).read_bytes())),
        )
    return None


def _mapped(path: Path, dtype: str) -> npt.NDArray[Any]:
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=dtype)


def _splits(rows: list[tuple[str, str, int]]) -> dict[str, Split]:
    lengths = np.array([length for _, _, length in rows], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    splits = {}
    for name in SPLITS:
        mine = [i for i, (_, split, _) in enumerate(rows) if split == name]
        splits[name] = Split([rows[i][0] for i in mine], starts[mine], lengths[mine])
    return splits
