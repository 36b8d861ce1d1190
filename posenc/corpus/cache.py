"""The token cache: built once whoever asks, verified whenever opened, rebuilt when damaged.

An entry is a folder `tokens/<key>/` with `manifest.json`, `documents.json`, `tokens.bin` and, where tokens
are not bytes, `token_bytes.bin`. It is built under another name and renamed when whole, so a process killed
at any moment leaves nothing that a later one would believe.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from posenc.corpus.documents import SPLITS, Document
from posenc.corpus.facts import CorpusFacts, read_facts
from posenc.corpus.store import Split, TokenStore, mapped, smallest_dtype
from posenc.corpus.tokenizers import Tokenizer, build_tokenizer, cache_error
from posenc.durable import canonical, digest_of, read_sealed, sha256_of_file, sync, write_sealed
from posenc.errors import UserError
from posenc.paths import cache_dir

LAYOUT = 1  # raised when the files below change their meaning
log = logging.getLogger(__name__)


def prepare(
    data: Mapping[str, Any], tokenizer: Mapping[str, Any], facts: CorpusFacts | None = None
) -> TokenStore:
    """The corpus as tokens, from the cache or put there now.

    `facts` is what `inspect` returned for the same `data`; its documents are let go of. Raises UserError for
    wrong settings or an empty corpus, RunError when a source is out of reach or the cache cannot be written.
    """
    facts = facts if facts is not None else read_facts(data)
    chosen = build_tokenizer(tokenizer, facts)
    asked = {"fingerprint": facts.fingerprint, "tokenizer": chosen.identity(), "layout": LAYOUT}
    entry = cache_dir() / "tokens" / digest_of(asked)
    store = _open(entry)
    if store is None:
        try:
            store = _build_once(entry, facts, chosen)
        except OSError as error:
            raise cache_error(entry.parent, error) from error
    facts.loaded = None
    return store


def _build_once(entry: Path, facts: CorpusFacts, tokenizer: Tokenizer) -> TokenStore:
    entry.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(entry.with_suffix(".lock")):
        store = _open(entry)  # another process may have built it while this one waited
        if store is not None:
            return store
        if entry.exists():
            log.warning("the token cache %s is damaged; it is built again", entry)
        for stale in entry.parent.glob(f".{entry.name}.*"):  # of a process that was killed
            shutil.rmtree(stale, ignore_errors=True)
        building = entry.with_name(f".{entry.name}.{os.getpid()}")
        try:
            building.mkdir()
            _write(building, facts, tokenizer)
            shutil.rmtree(entry, ignore_errors=True)
            building.rename(entry)
            sync(entry.parent)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        log.info("tokenised %s into %s", facts.name, entry)
    store = _open(entry)
    if store is None:
        raise OSError(f"what was written to {entry} does not read back the same")
    return store


def _write(folder: Path, facts: CorpusFacts, tokenizer: Tokenizer) -> None:
    documents = _in_order(facts.read())
    dtype = smallest_dtype(tokenizer.vocab_size)
    lengths: list[int] = []
    one_each = True
    tokens_path, bytes_path = folder / "tokens.bin", folder / "token_bytes.bin"
    with tokens_path.open("wb") as tokens, bytes_path.open("wb") as sizes:
        for ids, counts in tokenizer.encode_all(document.text for document in documents):
            tokens.write(ids.astype(dtype).tobytes())
            lengths.append(len(ids))
            if counts is not None:
                one_each = False
                sizes.write(counts.astype(np.uint32).tobytes())
    if not sum(lengths):
        raise UserError("data", facts.name, "holds no text")
    if one_each:
        bytes_path.unlink()
    else:
        narrow = _narrowed(bytes_path)
    rows = zip(documents, lengths, strict=True)
    table: dict[str, list[tuple[str, int]]] = {name: [] for name in SPLITS}
    for document, length in rows:
        table[str(document.split)].append((document.id, length))
    (folder / "documents.json").write_bytes(canonical(table))
    names = ["tokens.bin", "documents.json", *([] if one_each else ["token_bytes.bin"])]
    for name in names:
        sync(folder / name)
    manifest = {
        "layout": LAYOUT,
        "fingerprint": facts.fingerprint,
        "tokenizer": tokenizer.identity(),
        "vocab_size": tokenizer.vocab_size,
        "dtype": dtype.newbyteorder("<").str,
        "bytes_dtype": None if one_each else narrow,
        "files": {name: sha256_of_file(folder / name) for name in names},
    }
    write_sealed(folder / "manifest.json", manifest)


def _narrowed(path: Path) -> str:
    """Bytes a token in 16 bits where all fit, which is nearly always; the dtype that was chosen."""
    counts = mapped(path, "<u4")
    if counts.max() >= 2**16:
        return "<u4"
    narrow = path.with_suffix(".narrow")
    counts.astype("<u2").tofile(narrow)
    narrow.replace(path)
    return "<u2"


def _in_order(documents: list[Document]) -> list[Document]:
    return sorted(documents, key=lambda d: (SPLITS.index(str(d.split)), d.id))


def _open(entry: Path) -> TokenStore | None:
    """The store in a folder, or None when it is absent or a single bit of it has changed."""
    manifest = read_sealed(entry / "manifest.json")
    if manifest is None or manifest.get("layout") != LAYOUT:
        return None
    with contextlib.suppress(OSError, ValueError):
        if any(sha256_of_file(entry / name) != digest for name, digest in manifest["files"].items()):
            return None
        kind = manifest["bytes_dtype"]
        return TokenStore(
            tokens=mapped(entry / "tokens.bin", manifest["dtype"]),
            token_bytes=None if kind is None else mapped(entry / "token_bytes.bin", kind),
            fingerprint=manifest["fingerprint"],
            vocab_size=manifest["vocab_size"],
            tokenizer=manifest["tokenizer"],
            splits=_splits(json.loads((entry / "documents.json").read_bytes())),
        )
    return None


def _splits(table: dict[str, list[list[Any]]]) -> dict[str, Split]:
    splits, start = {}, 0
    for name in SPLITS:
        lengths = np.array([length for _, length in table[name]], dtype=np.int64)
        starts = start + np.cumsum(lengths) - lengths
        splits[name] = Split([document for document, _ in table[name]], starts, lengths)
        start += int(lengths.sum())
    return splits
