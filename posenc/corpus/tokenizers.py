"""Tokenizers: bytes, a byte-level BPE trained on the corpus, or any of the `tokenizers` library.

Each says how many bytes of text every token stands for, so that bits per byte can be told for all of them.
No special tokens are ever added.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from posenc.corpus.documents import Document
from posenc.corpus.hub_access import reachable, unreachable
from posenc.corpus.trouble import cache_error
from posenc.durable import digest_of, file_lock, read_sealed, write_sealed
from posenc.errors import RunError, UserError
from posenc.names import visible
from posenc.paths import cache_dir
from posenc.signature import check_arguments

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
        self.vocab_size: int = self._library.get_vocab_size(with_added_tokens=True)

    def identity(self) -> dict[str, Any]:
        """What it is, not how it came about: a trained one and its copy in a run are one tokenizer."""
        return {"name": "tokenizers", "sha256": _sha256(str(self.definition))}

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


def check_tokenizer(settings: Mapping[str, Any]) -> None:
    """Raises UserError when the `tokenizer` group's settings are wrong; trains and loads nothing."""
    _checked(settings)


def build_tokenizer(settings: Mapping[str, Any], facts: Text) -> Tokenizer:
    """The tokenizer of the `tokenizer` group's settings, trained on the corpus where it has to be.

    A trained one is kept in the user's cache. Raises UserError for wrong settings, RunError when the hub or
    the cache is out of reach.
    """
    arguments = _checked(settings)
    if settings["name"] == "bpe":
        return _bpe(facts, **arguments)
    if settings["name"] == "hf":
        return _hf(**arguments)
    return ByteTokenizer()


def stored_tokenizer(file: Path) -> dict[str, Any]:
    """The `tokenizer` settings that read a definition kept with a model."""
    return {"name": "hf", "path": str(file), "revision": "main"}


def absolute_tokenizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with a local path made absolute, so that they mean the same from another folder."""
    path = settings.get("path")
    local = isinstance(path, str) and Path(path).expanduser().exists()
    return {**settings, **({"path": str(Path(str(path)).expanduser().resolve())} if local else {})}


def _no_arguments() -> None:
    """`tokenizer=bytes` has no parameters."""


def _bpe(facts: Text, *, vocab_size: int) -> Tokenizer:
    asked = {"name": "bpe", "vocab_size": vocab_size, "trained_on": facts.train_fingerprint}
    path = cache_dir() / "tokenizers" / f"{digest_of(asked)}.json"
    known = read_sealed(path)
    try:
        if known is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with file_lock(path.with_suffix(".lock")):
                known = read_sealed(path)
                if known is None:
                    if path.exists():
                        log.warning("the cached tokenizer %s is damaged; it is trained again", path)
                    texts = (d.text.decode() for d in facts.read() if d.split == "train")
                    known = {"definition": _train(texts, vocab_size)}
                    write_sealed(path, known)
    except OSError as error:
        raise cache_error(path.parent, error) from error
    definition: str = known["definition"]
    return LibraryTokenizer("bpe", definition)


def _train(texts: Iterable[str], vocab_size: int) -> str:
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(texts, trainer)
    definition: str = library.to_str()
    return definition


def _hf(*, path: str, revision: str) -> Tokenizer:
    local = Path(path).expanduser()
    file = local / "tokenizer.json" if local.is_dir() else local
    if not file.is_file():
        file = _download(path, revision)
    try:
        return LibraryTokenizer("hf", file.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception for a file it cannot take
        problem = f"is not a tokenizer of the `tokenizers` library ({visible(str(error)[:100])})"
        raise UserError("tokenizer.path", visible(path), problem) from error


def _download(name: str, revision: str) -> Path:
    online = reachable()
    from huggingface_hub import hf_hub_download

    try:
        found = hf_hub_download(name, "tokenizer.json", revision=revision, local_files_only=not online)
    except Exception as error:  # of five packages; all final here
        if online:
            raise RunError(
                f"the hub gave no tokenizer {visible(name)}: {visible(str(error)[:200])}",
                hint="ways out: tokenizer.path=FILE for a tokenizer.json; tokenizer=bpe; tokenizer=bytes",
            ) from error
        raise unreachable(
            f"the tokenizer {visible(name)}",
            "copy HF_HOME from a machine with network; tokenizer.path=FILE; tokenizer=bpe; tokenizer=bytes",
        ) from error
    return Path(found)


BUILDERS: dict[str, Callable[..., Any]] = {"bytes": _no_arguments, "bpe": _bpe, "hf": _hf}


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    name = settings.get("name")
    if name not in BUILDERS:
        raise UserError("tokenizer", name, "there is no such tokenizer", allowed=sorted(BUILDERS))
    given = {key: value for key, value in settings.items() if key != "name"}
    arguments = check_arguments(BUILDERS[name], given, "tokenizer")
    if name == "bpe" and not 256 <= arguments["vocab_size"] <= 2**20:
        size = arguments["vocab_size"]
        raise UserError("tokenizer.vocab_size", size, "out of range", allowed="256 (the bytes) to 1048576")
    if name == "hf":
        _check_path(arguments["path"])
    return arguments


def _check_path(path: str) -> None:
    if path in {"", "???"}:
        raise UserError("tokenizer.path", None, "missing", hint="tokenizer.path=FILE, or a name on the hub")
    local = Path(path).expanduser()
    if local.is_dir() and not (local / "tokenizer.json").is_file():
        raise UserError("tokenizer.path", visible(path), "this folder holds no tokenizer.json")
    looks_local = path.endswith(".json") or path.startswith((".", "/", "~")) or path.count("/") > 1
    if looks_local and not local.exists():
        raise UserError("tokenizer.path", visible(path), "there is no such file")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
