"""Tokenizers: bytes, a byte-level BPE trained on the corpus, or any of the `tokenizers` library.

Each says how many bytes of text every token stands for, so that all report bits per byte. No special tokens
are ever added.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from posenc.core.atomic_files import cannot_write, digest_of, file_lock, read_sealed, write_sealed
from posenc.core.console import run_interruptible, say
from posenc.core.errors import UserError, visible
from posenc.core.paths import cache_dir, exists, expanded, is_file, is_folder, why_impossible, why_missing
from posenc.data.documents import Document, utf8_text
from posenc.data.hub import not_loaded, reachable
from posenc.settings.numbers import check_whole
from posenc.settings.signature import check_choice
from posenc.settings.tree import TokenizerSettings

# documents at once in the library's threads: it takes 100 to 300 times the memory of the text
DOCUMENTS_AT_ONCE = 8
LEAST_BPE = 256  # tokens: one for each byte
LARGEST_BPE = 2**20
HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?(?<!\.json)")

Encoded = tuple[npt.NDArray[Any], npt.NDArray[Any] | None]  # ids, and bytes of each; None: one each


class TrainingText(Protocol):
    """A corpus that a tokenizer is trained on."""

    @property
    def train_fingerprint(self) -> str: ...
    def read(self) -> list[Document]: ...


class Tokenizer:
    """One token a byte, or a tokenizer of the `tokenizers` library from its JSON, the `definition`."""

    def __init__(self, name: str, definition: str | None = None) -> None:
        self.name = name
        self.definition = definition
        self.vocab_size = 256
        if definition is not None:
            from tokenizers import Tokenizer as LibraryTokenizer

            self._library = LibraryTokenizer.from_str(definition)
            self._library.no_truncation()
            self._library.no_padding()
            ids = self._library.get_vocab(with_added_tokens=True).values()
            self.vocab_size = max(ids, default=-1) + 1  # not their number: a pruned vocabulary has gaps

    def identity(self) -> dict[str, Any]:
        """Return plain JSON that is hashed into cache keys and runs."""
        if self.definition is None:
            return {"name": self.name}
        # what it is, not how it was made: a trained one and its copy in a run are the same tokenizer
        return {"name": "tokenizers", "sha256": hashlib.sha256(self.definition.encode()).hexdigest()}

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text."""
        ((ids, _),) = self.encode_all([utf8_text(text, "text", visible(text)[:40])])
        return [int(token_id) for token_id in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; bytes that are no UTF-8 become the replacement sign."""
        text_ids = [token_id for token_id in ids if token_id < self.vocab_size]  # no tokens of planted pairs
        if self.definition is None:
            return bytes(text_ids).decode("utf-8", "replace")
        return str(self._library.decode(text_ids, skip_special_tokens=False))

    def encode_all(self, texts: Sequence[bytes]) -> Iterator[Encoded]:
        """Yield for each text its ids, and the bytes that each stands for; they sum to all bytes."""
        if self.definition is None:
            for text in texts:
                yield np.frombuffer(text, dtype=np.uint8), None
            return
        for start in range(0, len(texts), DOCUMENTS_AT_ONCE):
            batch = texts[start : start + DOCUMENTS_AT_ONCE]
            decoded = [text.decode() for text in batch]
            encodings = self._library.encode_batch(decoded, add_special_tokens=False)
            for text, encoding in zip(batch, encodings, strict=True):
                ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
                yield np.array(encoding.ids, dtype=np.uint32), bytes_per_token(text, ends)


def bytes_per_token(text: bytes, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return the bytes of UTF-8 of each token, from the character where each ends; they sum to all."""
    if not len(ends):
        return np.zeros(0, dtype=np.uint32)
    is_first_byte = (np.frombuffer(text, dtype=np.uint8) & 0xC0) != 0x80  # of a character
    byte_of_character = np.append(np.flatnonzero(is_first_byte), len(text))  # the end of the text last
    # spans may overlap: a byte counts for the first token that reaches it
    reached = np.maximum.accumulate(byte_of_character[ends])
    reached[-1] = len(text)
    return np.diff(reached, prepend=0).astype(np.uint32)


# --- From settings


def check_tokenizer(settings: TokenizerSettings) -> dict[str, Any]:
    """Return the parameters of a tokenizer, checked; trains and loads nothing. Raises UserError."""
    parameters = check_choice("tokenizer", settings, BUILDERS, "there is no such tokenizer")
    if settings.name == "bpe":
        check_whole("tokenizer.vocab_size", parameters["vocab_size"], least=LEAST_BPE, most=LARGEST_BPE)
    if settings.name == "hf":
        path = parameters["path"]
        file = _definition_file(path)
        if not is_file(file) and (not HUB_NAME.fullmatch(path) or why_impossible(file)):
            allowed = "a tokenizer.json, a folder with one, or a name on the hub"
            raise UserError("tokenizer.path", path, why_missing(file, "file"), allowed=allowed)
    return parameters


def build_tokenizer(settings: TokenizerSettings, text: TrainingText | None) -> Tokenizer:
    """Build a tokenizer, trained on `text` where it has to be, then cached. Raises UserError, RunError."""
    parameters = check_tokenizer(settings)
    return BUILDERS[settings.name](text, **parameters)


def stored_tokenizer(file: Path) -> TokenizerSettings:
    """Return the settings that read a definition kept with a model."""
    return TokenizerSettings.model_validate({"name": "hf", "path": str(file), "revision": "main"})


def absolute_tokenizer(settings: TokenizerSettings) -> TokenizerSettings:
    """Return the settings with a local path made absolute, so that they mean the same from another folder."""
    path = settings.parameters.get("path")
    if path is None or not exists(str(path)):
        return settings
    return settings.with_changes(path=str(expanded(str(path)).resolve()))


def _bytes(text: TrainingText | None) -> Tokenizer:
    return Tokenizer("bytes")


def _bpe(text: TrainingText, *, vocab_size: int) -> Tokenizer:
    key = {"name": "bpe", "vocab_size": vocab_size, "trained_on": text.train_fingerprint}
    path = cache_dir() / "tokenizers" / f"{digest_of(key)}.json"
    cached = read_sealed(path)
    if cached is None:
        with cache_lock(path.with_suffix(".lock"), 0):
            say(f"training the tokenizer of {vocab_size:,} tokens")
            texts = (document.text.decode() for document in text.read() if document.split == "train")
            cached = {"definition": run_interruptible(lambda: _train_bpe(texts, vocab_size))}
            write_sealed(path, cached)
    return Tokenizer("bpe", cached["definition"])


def _train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """Train a byte-level BPE and return its JSON."""
    from tokenizers import Tokenizer as LibraryTokenizer
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(texts, trainer)
    return str(library.to_str())


def _hf(text: TrainingText | None, *, path: str, revision: str) -> Tokenizer:
    file = _definition_file(path)
    if not is_file(file):
        file = _download(path, revision)
    try:
        return Tokenizer("hf", file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception for a file it cannot take
        problem = f"is not a tokenizer of the `tokenizers` library ({str(error)[:100]})"
        raise UserError("tokenizer.path", path, problem) from error


def _definition_file(path: str) -> Path:
    """Return the `tokenizer.json` that a path names, if it is one."""
    local = expanded(path)
    return local / "tokenizer.json" if is_folder(local) else local


def _download(name: str, revision: str) -> Path:
    """Return the definition of a tokenizer on the hub, from the hub's cache without a network."""
    is_online = reachable()
    from huggingface_hub import hf_hub_download

    try:
        return Path(
            hf_hub_download(name, "tokenizer.json", revision=revision, local_files_only=not is_online)
        )
    except Exception as error:  # of five packages; all final here
        ways_out = "tokenizer.path=FILE (a tokenizer.json); tokenizer=bpe"
        raise not_loaded(f"the tokenizer {name}", error if is_online else None, ways_out) from error


BUILDERS: dict[str, Callable[..., Tokenizer]] = {"bytes": _bytes, "bpe": _bpe, "hf": _hf}


@contextlib.contextmanager
def cache_lock(path: Path, needed: int) -> Iterator[None]:
    """Hold a lock of the cache; an OSError becomes a RunError that says path, bytes `needed` and free."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(path):
            yield
    except OSError as error:
        hint = "POSENC_CACHE=FOLDER puts the cache elsewhere"
        raise cannot_write(path.parent, error, needed=needed, hint=hint) from error
