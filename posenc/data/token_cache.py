"""The token cache: the tokens of a corpus in one array on disk, which is verified when it is opened.

`tokens/<key>/` holds `manifest.json`, `documents.json`, `tokens.bin` and, if tokens are not bytes,
`token_bytes.bin`. The folder is written whole, as by renamed_when_whole: a kill leaves no half of it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc.core.atomic_files import (
    canonical,
    digest_of,
    read_sealed,
    renamed_when_whole,
    sealed,
    sha256_of_file,
)
from posenc.core.errors import UserError
from posenc.core.paths import cache_dir
from posenc.core.progress import Title, progress_of
from posenc.data.documents import SPLITS, Document, groups_of
from posenc.data.tasks.instances import TaskInstances
from posenc.data.tokenizers import Tokenizer

LAYOUT = 2  # raised when the files below change their meaning
MANIFEST = "manifest.json"
DOCUMENTS = "documents.json"
TOKENS = "tokens.bin"
TOKEN_BYTES = "token_bytes.bin"
TOKEN_BYTES_DTYPE = "<u4"
BYTE_VALUES = 256
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """The N documents of a split, in the order of their ids."""

    ids: list[str]
    starts: Ints  # (N,) index of a document's first token in the token array
    lengths: Ints  # (N,) tokens

    @functools.cached_property
    def groups(self) -> Ints | None:
        """Return the number of each document's group, (N,); None if there are no groups."""
        groups = groups_of(self.ids)
        return None if groups is None else np.array(groups, dtype=np.int64)


@dataclass(frozen=True)
class TokenStore:
    """A tokenised corpus. `tokens` and `token_bytes` are read-only and mapped from files."""

    tokens: npt.NDArray[Any]  # uint8, uint16 or uint32, as the vocabulary needs
    token_bytes: npt.NDArray[Any] | None  # bytes of text of each token; None if every token is one byte
    fingerprint: str
    vocab_size: int
    tokenizer: dict[str, Any]
    splits: Mapping[str, Split]
    task: TaskInstances | None = None  # if given, there is no text: no tokens and no documents
    is_outline: bool = False  # every token is 0, because a run is planned without reading its text

    @property
    def sizes(self) -> dict[str, list[int]]:
        """Return how many tokens each document has, by split."""
        return {name: split.lengths.tolist() for name, split in self.splits.items()}

    def document(self, split: str, i: int) -> npt.NDArray[Any]:
        """Return the tokens of a split's i-th document: a view, not a copy."""
        documents = self.splits[split]
        start = int(documents.starts[i])
        return self.tokens[start : start + int(documents.lengths[i])]

    def token_counts(self, split: str) -> Ints:
        """Return how often each token occurs in a split: (V,)."""
        counts = np.zeros(self.vocab_size, dtype=np.int64)
        for i in range(len(self.splits[split].ids)):
            # Document by document, since `bincount` turns its numbers into int64: eight times the size of
            # bytes.
            counts += np.bincount(self.document(split, i), minlength=self.vocab_size)
        return counts

    def bytes_between(self, starts: Ints, stops: Ints) -> Ints:
        """Return the bytes of text in each `tokens[starts[i]:stops[i]]`."""
        if self.token_bytes is None:
            return np.asarray(stops - starts, dtype=np.int64)
        # A sum over the whole array once would read gigabytes for a few thousand targets.
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        sums = [self.token_bytes[start:stop].sum(dtype=np.int64) for start, stop in spans]
        return np.array(sums, dtype=np.int64)


def entry_of(fingerprint: str, tokenizer_identity: Mapping[str, Any]) -> Path:
    """Return the folder of a text's tokens. The text is known by its fingerprint."""
    key = {"fingerprint": fingerprint, "tokenizer": tokenizer_identity, "layout": LAYOUT}
    return cache_dir() / "tokens" / digest_of(key)


def task_store(fingerprint: str, task: TaskInstances) -> TokenStore:
    """Return a store without text, whose windows are instances of a task. A token is a byte."""
    nothing = np.zeros(0, dtype=np.int64)
    splits = {name: Split([], nothing, nothing) for name in SPLITS}
    return TokenStore(
        tokens=np.zeros(0, dtype=np.uint8),
        token_bytes=None,
        fingerprint=fingerprint,
        vocab_size=BYTE_VALUES,
        tokenizer={"name": "bytes"},
        splits=splits,
        task=task,
    )


# --- Writing


def write_entry(
    entry: Path, name: str, fingerprint: str, tokenizer: Tokenizer, documents: Sequence[Document]
) -> None:
    """Write the tokens of documents, which are in the order of their ids. The caller holds the entry's lock.

    Raises UserError if there are no tokens.
    """
    folder = entry.with_name(f".{entry.name}")
    with renamed_when_whole(folder, entry):
        # The smallest type that holds every id. Little-endian on every machine, as the manifest says.
        dtype = np.min_scalar_type(tokenizer.vocab_size - 1).newbyteorder("<")
        _write_tokens(folder, tokenizer, dtype, documents)
        # An empty file cannot be mapped into memory.
        if not (folder / TOKENS).stat().st_size:
            # Documents have text, so it is the tokenizer that makes nothing of it.
            if documents:
                problem = f"has no token for any character of {name}"
                hint = "tokenizer=bpe is trained on the text, tokenizer=bytes reads every text"
                raise UserError("tokenizer.path", None, problem, hint=hint)
            raise UserError("data", name, "holds no text")
        manifest = {
            "layout": LAYOUT,
            "corpus": name,
            "fingerprint": fingerprint,
            "tokenizer": tokenizer.identity(),
            "vocab_size": tokenizer.vocab_size,
            "dtype": dtype.str,
            "files": {file.name: sha256_of_file(file) for file in sorted(folder.iterdir())},
        }
        # The last file: it holds the hashes of the others.
        (folder / MANIFEST).write_bytes(sealed(manifest))
        shutil.rmtree(entry, ignore_errors=True)  # an older one that is damaged


def _write_tokens(
    folder: Path, tokenizer: Tokenizer, dtype: np.dtype[Any], documents: Sequence[Document]
) -> None:
    """Write the files of an entry except for its manifest."""
    rows = []
    done = 0  # bytes of text
    total = sum(len(document.text) for document in documents)  # bytes of text
    # A generator, so that the tokens of a few documents are in memory and not those of all.
    encoded = tokenizer.encode_all([document.text for document in documents])
    with (
        progress_of(Title("tokenising", "{name}", has_last_line=False), total) as progress,
        (folder / TOKENS).open("wb") as tokens,
        (folder / TOKEN_BYTES).open("wb") as token_bytes,
    ):
        for document, text in zip(documents, encoded, strict=True):
            tokens.write(text.ids.astype(dtype).tobytes())
            if text.byte_counts is not None:
                token_bytes.write(text.byte_counts.astype(TOKEN_BYTES_DTYPE).tobytes())
            rows.append((document.id, document.split, len(text.ids)))
            done += len(document.text)
            progress.update(done, f"{done / 1e6:.1f} of {total / 1e6:.1f} MB")
    (folder / DOCUMENTS).write_bytes(canonical(rows))
    if tokenizer.name == "bytes":
        (folder / TOKEN_BYTES).unlink()  # every token is one byte


# --- Reading


def open_entry(entry: Path) -> TokenStore | None:
    """Return the store in a folder; None if it is missing, or if any bit of it has changed."""
    manifest = read_sealed(entry / MANIFEST)
    if manifest is None:
        return None
    # A damaged entry may hold anything, and whatever is wrong with it, it is built again.
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        return _verified_store(entry, manifest)
    return None


def _verified_store(entry: Path, manifest: Mapping[str, Any]) -> TokenStore | None:
    """Return the store in a folder; None if a file differs from its hash in the manifest."""
    for name, digest in manifest["files"].items():
        # Each time it is opened: a changed bit in the text would change results and raise no error.
        if sha256_of_file(entry / name) != digest:
            return None
    has_token_bytes = TOKEN_BYTES in manifest["files"]
    return TokenStore(
        tokens=_mapped(entry / TOKENS, manifest["dtype"]),
        token_bytes=_mapped(entry / TOKEN_BYTES, TOKEN_BYTES_DTYPE) if has_token_bytes else None,
        fingerprint=manifest["fingerprint"],
        vocab_size=manifest["vocab_size"],
        tokenizer=manifest["tokenizer"],
        splits=_splits_of(json.loads((entry / DOCUMENTS).read_bytes())),
    )


def _mapped(file: Path, dtype: str) -> npt.NDArray[Any]:
    """Map a file of numbers into memory, read-only."""
    return np.memmap(file, dtype, "r").view(np.ndarray)  # as an ndarray it is faster to index


def _splits_of(rows: Sequence[tuple[str, str, int]]) -> dict[str, Split]:
    """Return the splits. `rows` has (id, split, length in tokens) of each document, as in the token array."""
    lengths = np.array([length for _, _, length in rows], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    splits = {}
    for name in SPLITS:
        numbers = [number for number, (_, split, _) in enumerate(rows) if split == name]
        ids = [rows[number][0] for number in numbers]
        splits[name] = Split(ids, starts[numbers], lengths[numbers])
    return splits
