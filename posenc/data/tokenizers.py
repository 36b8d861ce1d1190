"""Tokenizers: bytes, a byte-level BPE trained on the corpus, or any of the `tokenizers` library.

Each says how many bytes of text every token stands for, so that all report bits per byte. No special tokens
are ever added.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from posenc.core.atomic_files import cannot_write, digest_of, file_lock, read_sealed, write_sealed
from posenc.core.console import run_interruptible, say
from posenc.core.errors import UserError
from posenc.core.paths import cache_dir, expanded
from posenc.core.signature import check_choice, parameters, whole
from posenc.data.hub import not_loaded, reachable

BATCH = 8  # documents at once in the library's threads: it takes 100 to 300 times the memory of the text
HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?(?<!\.json)")


@contextlib.contextmanager
def cache_lock(path: Path, needed: int) -> Iterator[None]:
    """Hold a lock of the cache; any OSError becomes a RunError that says path, bytes `needed` and free."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_lock(path):
            yield
    except OSError as error:
        hint = "POSENC_CACHE=FOLDER puts the cache elsewhere"
        raise cannot_write(path.parent, error, needed=needed, hint=hint) from error


class Tokenizer:
    """One token a byte, or a tokenizer of the `tokenizers` library from its JSON, the `definition`."""

    def __init__(self, name: str, definition: str | None = None) -> None:
        self.name, self.definition, self.vocab_size = name, definition, 256
        if definition is not None:
            from tokenizers import Tokenizer as Library

            self._library = Library.from_str(definition)
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
        ((ids, _),) = self.encode_all([text.encode("utf-8", "replace")])
        return [int(one) for one in ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; bytes that are no UTF-8 become the replacement sign."""
        own = [one for one in ids if one < self.vocab_size]
        if self.definition is None:
            return bytes(own).decode("utf-8", "replace")
        return str(self._library.decode(own, skip_special_tokens=False))

    def encode_all(
        self, texts: Sequence[bytes]
    ) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[Any] | None]]:
        """Yield for each text ids, and its bytes that each stands for (None: one each); they sum to all."""
        if self.definition is None:
            yield from ((np.frombuffer(text, dtype=np.uint8), None) for text in texts)
            return
        for i in range(0, len(texts), BATCH):
            batch = texts[i : i + BATCH]
            decoded = [text.decode() for text in batch]
            encodings = self._library.encode_batch(decoded, add_special_tokens=False)
            for text, encoding in zip(batch, encodings, strict=True):
                ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
                yield np.array(encoding.ids, dtype=np.uint32), bytes_per_token(text, ends)


def bytes_per_token(text: bytes, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return the bytes of UTF-8 of each token, from the character where each ends; they sum to all."""
    if not len(ends):
        return np.zeros(0, dtype=np.uint32)
    is_start = (np.frombuffer(text, dtype=np.uint8) & 0xC0) != 0x80
    byte_at = np.append(np.flatnonzero(is_start), len(text))  # of each character; the end last
    reached = np.maximum.accumulate(byte_at[ends])
    reached[-1] = len(text)
    return np.diff(reached, prepend=0).astype(np.uint32)


def check_tokenizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `tokenizer` settings with their parameters typed; trains and loads nothing. UserError."""
    arguments = check_choice("tokenizer", settings, BUILDERS, "there is no such tokenizer")
    name = arguments["name"]
    if name == "bpe":
        whole("tokenizer.vocab_size", arguments["vocab_size"], least=256, most=2**20)
    if name == "hf" and not _file(arguments["path"]).is_file() and not HUB_NAME.fullmatch(arguments["path"]):
        allowed = "a tokenizer.json, a folder with one, or a name on the hub"
        raise UserError("tokenizer.path", arguments["path"], "there is no such file", allowed=allowed)
    return arguments


def build_tokenizer(settings: Mapping[str, Any], facts: Any) -> Tokenizer:
    """Build a tokenizer, trained on the corpus of `facts` (CorpusFacts) where it has to be, then cached."""
    return BUILDERS[settings["name"]](facts, **parameters(check_tokenizer(settings)))


def stored_tokenizer(file: Path) -> dict[str, Any]:
    """Return the `tokenizer` settings that read a definition kept with a model."""
    return {"name": "hf", "path": str(file), "revision": "main"}


def absolute_tokenizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with a local path made absolute, so that they mean the same from another folder."""
    local = expanded(str(settings.get("path")))
    is_there = "path" in settings and local.exists()
    return {**settings, **({"path": str(local.resolve())} if is_there else {})}


def _bpe(facts: Any, *, vocab_size: int) -> Tokenizer:
    asked = {"name": "bpe", "vocab_size": vocab_size, "trained_on": facts.train_fingerprint}
    path = cache_dir() / "tokenizers" / f"{digest_of(asked)}.json"
    if (known := read_sealed(path)) is None:
        with cache_lock(path.with_suffix(".lock"), 0):
            say(f"training the tokenizer of {vocab_size:,} tokens")
            texts = (d.text.decode() for d in facts.read() if d.split == "train")
            known = {"definition": run_interruptible(lambda: _train_bpe(texts, vocab_size))}
            write_sealed(path, known)
    return Tokenizer("bpe", known["definition"])


def _train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """Train a byte-level BPE and return its JSON."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(texts, trainer)
    return str(library.to_str())


def _hf(facts: Any, *, path: str, revision: str) -> Tokenizer:
    file = _file(path)
    if not file.is_file():
        online = reachable()
        from huggingface_hub import hf_hub_download

        try:
            got = hf_hub_download(path, "tokenizer.json", revision=revision, local_files_only=not online)
        except Exception as error:  # of five packages; all final here
            what, ways = f"the tokenizer {path}", "tokenizer.path=FILE (a tokenizer.json); tokenizer=bpe"
            raise not_loaded(what, error if online else None, ways) from error
        file = Path(got)
    try:
        return Tokenizer("hf", file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception for a file it cannot take
        problem = f"is not a tokenizer of the `tokenizers` library ({str(error)[:100]})"
        raise UserError("tokenizer.path", path, problem) from error


def _file(path: str) -> Path:
    """Return the `tokenizer.json` that a path names, if it is one."""
    local = expanded(path)
    return local / "tokenizer.json" if local.is_dir() else local


BUILDERS: dict[str, Callable[..., Tokenizer]] = {
    "bytes": lambda facts: Tokenizer("bytes"),
    "bpe": _bpe,
    "hf": _hf,
}
