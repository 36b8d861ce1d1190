"""Tokenizers: bytes, a byte-level BPE trained on the corpus, or any of the `tokenizers` library.

Each says how many bytes of text every token stands for, so that all report bits per byte. No special tokens
are ever added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from posenc.core.atomic_files import cannot_write, digest_of, read_sealed, write_sealed
from posenc.core.console import run_interruptible, say
from posenc.core.errors import UserError
from posenc.core.paths import cache_dir, expanded
from posenc.core.signature import check_arguments
from posenc.data.documents import Document
from posenc.data.hub import load_failed, reachable, unreachable

# a document, its ids, and the bytes of text that each stands for (None: one each), which sum to all
Encoded = tuple[Document, npt.NDArray[Any], npt.NDArray[Any] | None]
BATCH = 64  # documents handed to the library's threads at once,
BATCH_BYTES = 2**21  # or fewer, where they are long: it takes 100 to 300 times the memory of the text


class Text(Protocol):
    """What a tokenizer may be trained on: `CorpusFacts`."""

    train_fingerprint: str

    def read(self) -> list[Document]: ...


class ByteTokenizer:
    """One token a byte. Every tokenizer has a plain JSON identity that is hashed into cache keys and runs."""

    name = "bytes"
    vocab_size = 256
    definition: str | None = None  # its JSON, where it is more than its name

    def identity(self) -> dict[str, Any]:
        return {"name": self.name}

    def encode_all(self, documents: Iterable[Document]) -> Iterator[Encoded]:
        for document in documents:
            yield document, np.frombuffer(document.text, dtype=np.uint8), None


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
        self.vocab_size = max(ids, default=-1) + 1  # not their number: a pruned vocabulary has gaps

    def identity(self) -> dict[str, Any]:
        # what it is, not how it was made: a trained one and its copy in a run are the same tokenizer
        return {"name": "tokenizers", "sha256": hashlib.sha256(str(self.definition).encode()).hexdigest()}

    def encode_all(self, documents: Iterable[Document]) -> Iterator[Encoded]:
        for batch in _batches(documents):
            texts = [document.text.decode("utf-8") for document in batch]
            encodings = self._library.encode_batch(texts, add_special_tokens=False)
            for document, encoding in zip(batch, encodings, strict=True):
                ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
                yield document, np.array(encoding.ids, dtype=np.uint32), bytes_per_token(document.text, ends)


Tokenizer = ByteTokenizer | LibraryTokenizer


def bytes_per_token(text: bytes, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return the bytes of UTF-8 each token stands for, from the character where each ends; they sum to all.

    Text that no token covers counts for the next token, text after the last token for the last.
    """
    if not len(ends):
        return np.zeros(0, dtype=np.uint32)
    is_start = (np.frombuffer(text, dtype=np.uint8) & 0xC0) != 0x80
    byte_at = np.append(np.flatnonzero(is_start), len(text))  # of each character; the end last
    reached = np.maximum.accumulate(byte_at[ends])
    reached[-1] = len(text)
    return np.diff(reached, prepend=0).astype(np.uint32)


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    for document in documents:
        batch.append(document)
        if len(batch) == BATCH or sum(len(one.text) for one in batch) >= BATCH_BYTES:
            yield batch
            batch = []
    yield batch


def check_tokenizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the `tokenizer` settings; trains and loads nothing. Raises UserError."""
    name = settings.get("name")
    if name not in BUILDERS:
        raise UserError("tokenizer", name, "there is no such tokenizer", allowed=sorted(BUILDERS))
    given = {key: value for key, value in settings.items() if key != "name"}
    arguments = check_arguments(BUILDERS[name], given, "tokenizer")
    if name == "bpe" and not 256 <= arguments["vocab_size"] <= 2**20:
        size = arguments["vocab_size"]
        raise UserError("tokenizer.vocab_size", size, "out of range", allowed="256 (the bytes) to 1048576")
    if name == "hf":
        _local_definition(arguments["path"])
    return arguments


def build_tokenizer(settings: Mapping[str, Any], facts: Text) -> Tokenizer:
    """Build the tokenizer of the `tokenizer` group's settings, trained on the corpus where it has to be.

    A trained one is kept in the user's cache. Raises UserError for wrong settings, RunError when the hub or
    the cache is out of reach.
    """
    arguments = check_tokenizer(settings)
    tokenizer: Tokenizer = BUILDERS[str(settings["name"])](facts, **arguments)
    return tokenizer


def stored_tokenizer(file: Path) -> dict[str, Any]:
    """Return the `tokenizer` settings that read a definition kept with a model."""
    return {"name": "hf", "path": str(file), "revision": "main"}


def absolute_tokenizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with a local path made absolute, so that they mean the same from another folder."""
    path = settings.get("path")
    if isinstance(path, str) and expanded(path).exists():
        return {**settings, "path": str(expanded(path).resolve())}
    return dict(settings)


def _bytes(facts: Text) -> Tokenizer:
    return ByteTokenizer()


def _bpe(facts: Text, *, vocab_size: int) -> Tokenizer:
    asked = {"name": "bpe", "vocab_size": vocab_size, "trained_on": facts.train_fingerprint}
    path = cache_dir() / "tokenizers" / f"{digest_of(asked)}.json"
    if (known := read_sealed(path)) is None:
        texts = (d.text.decode() for d in facts.read() if d.split == "train")
        known = {"definition": _train_bpe(texts, vocab_size)}
        try:
            write_sealed(path, known)
        except OSError as error:
            raise cannot_write(path, error, hint="POSENC_CACHE=FOLDER puts the cache elsewhere") from error
    return LibraryTokenizer("bpe", known["definition"])


def _train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """Train a byte-level BPE and return its JSON; a signal stops it."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)

    def train() -> str:
        library.train_from_iterator(texts, trainer)
        return str(library.to_str())

    say(f"training the tokenizer of {vocab_size:,} tokens")
    return run_interruptible(train)


def _hf(facts: Text, *, path: str, revision: str) -> Tokenizer:
    file = _local_definition(path) or _download(path, revision)
    try:
        return LibraryTokenizer("hf", file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception for a file it cannot take
        problem = f"is not a tokenizer of the `tokenizers` library ({str(error)[:100]})"
        raise UserError("tokenizer.path", path, problem) from error


def _local_definition(path: str) -> Path | None:
    """Return the `tokenizer.json` that a path names; None for a name on the hub. Raises UserError."""
    if path in {"", "???"}:
        raise UserError("tokenizer.path", None, "missing", hint="tokenizer.path=FILE, or a name on the hub")
    local = expanded(path)
    file = local / "tokenizer.json" if local.is_dir() else local
    if file.is_file():
        return file
    if local.exists() or path.endswith(".json") or path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise UserError("tokenizer.path", path, "there is no such file, and no tokenizer.json in it")
    return None


def _download(name: str, revision: str) -> Path:
    online = reachable()
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, "tokenizer.json", revision=revision, local_files_only=not online))
    except Exception as error:  # of five packages; all final here
        what, ways = f"the tokenizer {name}", "tokenizer.path=FILE (a tokenizer.json); tokenizer=bpe or bytes"
        raise (load_failed(what, error, ways) if online else unreachable(what, ways)) from error


BUILDERS: dict[str, Callable[..., Tokenizer]] = {"bytes": _bytes, "bpe": _bpe, "hf": _hf}
