"""An entry of the token cache on disk: a folder that is written under another name and renamed when whole.

`tokens/<key>/` holds `manifest.json`, `documents.json`, `tokens.bin` and, where tokens are not bytes,
`token_bytes.bin`. A process killed at any moment leaves nothing that a later one would believe.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from posenc.core.atomic_files import (
    canonical,
    digest_of,
    file_lock,
    read_sealed,
    sha256_of_file,
    sync,
    write_sealed,
)
from posenc.core.errors import UserError
from posenc.core.paths import cache_dir
from posenc.data.documents import SPLITS
from posenc.data.store import Split, TokenStore, mapped, smallest_dtype
from posenc.data.tokenizers import Tokenizer

LAYOUT = 1  # raised when the files below change their meaning
TOKENS, SIZES = "tokens.bin", "token_bytes.bin"
CHUNK = 2**22  # token sizes in memory at once


def tokens_dir() -> Path:
    """Where the entries are."""
    return cache_dir() / "tokens"


def entry_of(fingerprint: str, tokenizer: Mapping[str, Any]) -> Path:
    """Where the tokens of a text lie, by its fingerprint and the identity of its tokenizer."""
    asked = {"fingerprint": fingerprint, "tokenizer": tokenizer, "layout": LAYOUT}
    return tokens_dir() / digest_of(asked)


class EntryWriter:
    """Documents in, in the order of their ids within each split; then `finish`."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self.folder, self.vocab_size = folder, vocab_size
        self.dtype = smallest_dtype(vocab_size)
        self._table: dict[str, list[tuple[str, int]]] = {name: [] for name in SPLITS}
        self._parts: dict[str, BinaryIO] = {}
        self._one_each = True

    def add(self, document: str, split: str, ids: npt.NDArray[Any], sizes: npt.NDArray[Any] | None) -> None:
        """A document's tokens, and the bytes each stands for (None: one each). Raises OSError."""
        self._part(TOKENS, split).write(ids.astype(self.dtype).tobytes())
        if sizes is not None:
            self._one_each = False
            self._part(SIZES, split).write(sizes.astype(np.uint32).tobytes())
        self._table[split].append((document, len(ids)))

    def finish(self, name: str, fingerprint: str, tokenizer: Tokenizer) -> None:
        """Write the rest and the manifest. Raises UserError when there was no text, OSError."""
        self.close()
        if not sum(length for rows in self._table.values() for _, length in rows):
            raise UserError("data", name, "holds no text")
        self._join(TOKENS)
        if not self._one_each:
            self._join(SIZES)
            narrow = _narrowed(self.folder / SIZES)
        (self.folder / "documents.json").write_bytes(canonical(self._table))
        names = [TOKENS, "documents.json", *([] if self._one_each else [SIZES])]
        for file in names:
            sync(self.folder / file)
        manifest = {
            "layout": LAYOUT,
            "corpus": name,
            "fingerprint": fingerprint,
            "tokenizer": tokenizer.identity(),
            "tokenizer_name": tokenizer.name,
            "vocab_size": self.vocab_size,
            "dtype": self.dtype.newbyteorder("<").str,
            "bytes_dtype": None if self._one_each else narrow,
            "files": {file: sha256_of_file(self.folder / file) for file in names},
        }
        write_sealed(self.folder / "manifest.json", manifest)

    def close(self) -> None:
        """Let go of the open files; safe to call again."""
        for part in self._parts.values():
            part.close()

    def _part(self, file: str, split: str) -> BinaryIO:
        name = f"{file}.{split}"
        if name not in self._parts:
            self._parts[name] = (self.folder / name).open("wb")
        return self._parts[name]

    def _join(self, file: str) -> None:
        """One file of the parts, one split after the other; the largest is the first, and only renamed."""
        whole = self.folder / file
        parts = [part for split in SPLITS if (part := self.folder / f"{file}.{split}").is_file()]
        parts[0].rename(whole)
        with whole.open("ab") as target:
            for part in parts[1:]:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, target)
                part.unlink()


@contextlib.contextmanager
def building(key: str) -> Iterator[Path]:
    """An empty folder to build an entry in, gone at the end unless it was renamed; needs the lock of `key`.

    What killed processes left, under this key or another, is removed. Raises OSError.
    """
    for stale in tokens_dir().glob(".*.*"):
        _clear(stale, stale.name.split(".")[1] == key)
    folder = tokens_dir() / f".{key}.{os.getpid()}"
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _clear(stale: Path, ours: bool) -> None:
    """Remove it unless another process is building there, which then holds the lock of its key."""
    lock = file_lock(stale.with_name(f"{stale.name.split('.')[1]}.lock"), timeout=0)
    with contextlib.suppress(OSError), contextlib.nullcontext() if ours else lock:
        shutil.rmtree(stale, ignore_errors=True)


def put_in_place(folder: Path, entry: Path) -> None:
    """Rename a whole folder to what it is to be, over a damaged one. Raises OSError."""
    shutil.rmtree(entry, ignore_errors=True)
    folder.rename(entry)
    sync(entry.parent)


def open_entry(entry: Path) -> TokenStore | None:
    """The store in a folder, or None when it is absent or a single bit of it has changed."""
    manifest = read_sealed(entry / "manifest.json")
    if manifest is None or manifest.get("layout") != LAYOUT:
        return None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        if any(sha256_of_file(entry / name) != digest for name, digest in manifest["files"].items()):
            return None
        kind = manifest["bytes_dtype"]
        return TokenStore(
            tokens=mapped(entry / TOKENS, manifest["dtype"]),
            token_bytes=None if kind is None else mapped(entry / SIZES, kind),
            fingerprint=manifest["fingerprint"],
            vocab_size=manifest["vocab_size"],
            tokenizer=manifest["tokenizer"],
            splits=_splits(json.loads((entry / "documents.json").read_bytes())),
        )
    return None


def cached_tokens() -> list[dict[str, Any]]:
    """What the cache holds, from the manifests alone: corpus, tokenizer, tokens, bytes on disk, path."""
    rows = []
    for path in sorted(tokens_dir().glob("[!.]*/manifest.json")):
        manifest = read_sealed(path)
        with contextlib.suppress(OSError, KeyError, TypeError):
            if manifest is None or manifest["layout"] != LAYOUT:
                continue
            entry = path.parent
            rows.append(
                {
                    "corpus": manifest["corpus"],
                    "fingerprint": manifest["fingerprint"],
                    "tokenizer": manifest["tokenizer_name"],
                    "vocab_size": manifest["vocab_size"],
                    "tokens": (entry / TOKENS).stat().st_size // np.dtype(manifest["dtype"]).itemsize,
                    "bytes_on_disk": sum((entry / name).stat().st_size for name in manifest["files"]),
                    "path": str(entry),
                }
            )
    return rows


def _narrowed(path: Path) -> str:
    """Bytes a token in 16 bits where all fit, which is nearly always; the dtype that was chosen."""
    counts = mapped(path, "<u4")
    if counts.max() >= 2**16:
        return "<u4"
    narrow = path.with_suffix(".narrow")
    with narrow.open("wb") as file:
        for start in range(0, len(counts), CHUNK):
            file.write(counts[start : start + CHUNK].astype("<u2").tobytes())
    narrow.replace(path)
    return "<u2"


def _splits(table: dict[str, list[list[Any]]]) -> dict[str, Split]:
    splits, start = {}, 0
    for name in SPLITS:
        lengths = np.array([length for _, length in table[name]], dtype=np.int64)
        starts = start + np.cumsum(lengths) - lengths
        splits[name] = Split([document for document, _ in table[name]], starts, lengths)
        start += int(lengths.sum())
    return splits
