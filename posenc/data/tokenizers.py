"""Tokenizers: bytes, a byte-level BPE trained on the corpus, or any tokenizer of the `tokenizers` library.

Each tokenizer says how many bytes of text a token stands for, so that losses can be given in bits per byte.
No special tokens are added.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from posenc.core.atomic_files import digest_of, read_sealed, write_sealed
from posenc.core.console import say
from posenc.core.errors import UserError, visible
from posenc.core.library_calls import run_interruptible
from posenc.core.paths import cache_dir, exists, expanded, is_file, is_folder, missing_path, why_impossible
from posenc.data.cache_lock import cache_lock
from posenc.data.documents import Document, utf8_text
from posenc.data.hub import not_loaded, reachable
from posenc.settings.numbers import check_whole
from posenc.settings.signature import check_choice
from posenc.settings.tree import TokenizerSettings

# How many documents the library encodes at once, in threads. That takes 100 to 300 times the memory of their
# text.
DOCUMENTS_AT_ONCE = 8
LEAST_BPE = 256  # tokens: one for each byte
LARGEST_BPE = 2**20
HUB_NAME = re.compile(r"\w[\w.-]*(/[\w.-]+)?(?<!\.json)")  # NAME or OWNER/NAME, but no FILE.json


class EncodedText(NamedTuple):
    """The n tokens of a text."""

    ids: npt.NDArray[Any]  # (n,)
    byte_counts: npt.NDArray[Any] | None  # (n,) bytes of text of each token; None if each is one byte


class TrainingCorpus(Protocol):
    """A corpus that a tokenizer is trained on."""

    @property
    def train_fingerprint(self) -> str: ...
    def read(self) -> list[Document]: ...


class Tokenizer:
    """A tokenizer of the library `tokenizers`, by its JSON; without a `definition` a token is a byte."""

    def __init__(self, name: str, definition: str | None = None) -> None:
        self.name = name
        self.definition = definition
        # One token for each byte, which needs no library.
        self.vocab_size = 256
        if definition is not None:
            from tokenizers import Tokenizer as LibraryTokenizer

            # From the text and not from a file, so that a run directory can hold the definition itself.
            self._library = LibraryTokenizer.from_str(definition)
            # A definition may cut texts, or fill them up, to the length that its model takes.
            self._library.no_truncation()
            self._library.no_padding()
            ids = self._library.get_vocab(with_added_tokens=True).values()
            self.vocab_size = max(ids, default=-1) + 1  # more than len(ids) if a pruned vocabulary has gaps

    @property
    def text_vocab_size(self) -> int:
        """Return how many tokens texts are made of: not those that were added (BOS, padding)."""
        if self.definition is None:
            return self.vocab_size
        return 1 + max(self._library.get_vocab(with_added_tokens=False).values(), default=-1)

    def identity(self) -> dict[str, Any]:
        """Return plain JSON that identifies the tokenizer in the hashes of cache entries and runs."""
        if self.definition is None:
            return {"name": self.name}
        # Not how it was made: a tokenizer that was trained here and its copy in a run directory are the same.
        return {"name": "tokenizers", "sha256": hashlib.sha256(self.definition.encode()).hexdigest()}

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text."""
        beginning = visible(text)[:40]  # enough for an error to name the text
        text_bytes = utf8_text(text, "text", beginning)
        encoded = next(self.encode_all([text_bytes]))
        return [int(token_id) for token_id in encoded.ids]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids. Bytes that are not UTF-8 become the replacement sign."""
        # ids beyond the vocabulary belong to planted pairs (posenc/data/planted.py), and have no text
        text_ids = [token_id for token_id in ids if token_id < self.vocab_size]
        if self.definition is None:
            return bytes(text_ids).decode("utf-8", "replace")
        return str(self._library.decode(text_ids, skip_special_tokens=False))

    def encode_all(self, texts: Sequence[bytes]) -> Iterator[EncodedText]:
        """Yield the tokens of each text. Their byte counts add up to the length of the text."""
        if self.definition is None:
            for text in texts:
                yield EncodedText(np.frombuffer(text, dtype=np.uint8), None)
            return
        for start in range(0, len(texts), DOCUMENTS_AT_ONCE):
            batch = texts[start : start + DOCUMENTS_AT_ONCE]
            decoded = [text.decode() for text in batch]
            # BOS and others are no text, and a window may begin anywhere in a document.
            try:
                encodings = self._library.encode_batch(decoded, add_special_tokens=False)
            # The library raises a bare Exception, as for a word that has no token and no substitute for one.
            except Exception as error:
                problem = f"cannot encode the text ({str(error)[:100]})"
                raise UserError("tokenizer.path", None, problem) from error
            for text, encoding in zip(batch, encodings, strict=True):
                # Ends alone: what lies between two tokens, such as a space that is stripped, counts for the
                # second one.
                ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
                yield EncodedText(np.array(encoding.ids, dtype=np.uint32), bytes_per_token(text, ends))


def bytes_per_token(text: bytes, ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Return how many bytes of UTF-8 each of n tokens stands for, (n,). They add up to the text's length.

    ends (n,) says where each token ends, as a number of characters.
    """
    if not len(ends):
        return np.zeros(0, dtype=np.uint32)
    # in UTF-8, all bytes of a character except its first one are 10xxxxxx
    starts_character = (np.frombuffer(text, dtype=np.uint8) & 0b1100_0000) != 0b1000_0000
    start_of_character = np.append(np.flatnonzero(starts_character), len(text))  # with the end of the text
    # Tokens may overlap. A byte counts for the first token that reaches it.
    end_bytes = np.maximum.accumulate(start_of_character[ends])
    end_bytes[-1] = len(text)
    return np.diff(end_bytes, prepend=0).astype(np.uint32)


# --- From settings


def check_tokenizer(settings: TokenizerSettings) -> dict[str, Any]:
    """Check the parameters of a tokenizer and return them. Nothing is trained or loaded. Raises UserError."""
    parameters = check_choice("tokenizer", settings, BUILDERS, "there is no such tokenizer")
    if settings.name == "bpe":
        check_whole("tokenizer.vocab_size", parameters["vocab_size"], least=LEAST_BPE, most=LARGEST_BPE)
    if settings.name == "hf":
        path = parameters["path"]
        file = _definition_file(path)
        if is_folder(expanded(path)) and not is_file(file):
            # even if the hub has a tokenizer of this name: elsewhere the same line must mean the same
            raise UserError("tokenizer.path", path, "is a folder here, without a tokenizer.json")
        if not is_file(file) and (not HUB_NAME.fullmatch(path) or why_impossible(file)):
            allowed = "a tokenizer.json, a folder with one, or a name on the hub"
            raise missing_path("tokenizer.path", path, "file", allowed=allowed)
    return parameters


def build_tokenizer(settings: TokenizerSettings, corpus: TrainingCorpus | None) -> Tokenizer:
    """Build a tokenizer. If it has to be trained, it is trained on the corpus and cached.

    Raises UserError, RunError.
    """
    parameters = check_tokenizer(settings)
    return BUILDERS[settings.name](corpus, **parameters)


def stored_tokenizer(file: Path) -> TokenizerSettings:
    """Return the settings for a definition that is stored beside a model."""
    return TokenizerSettings.model_validate({"name": "hf", "path": str(file), "revision": "main"})


def absolute_tokenizer(settings: TokenizerSettings) -> TokenizerSettings:
    """Return the settings with a local path made absolute, so that they mean the same from any folder."""
    path = settings.parameters.get("path")
    if path is None or not exists(str(path)):
        return settings
    return settings.with_changes(path=str(expanded(str(path)).resolve()))


def _bytes(corpus: TrainingCorpus | None) -> Tokenizer:
    return Tokenizer("bytes")


def _bpe(corpus: TrainingCorpus, *, vocab_size: int) -> Tokenizer:
    """Return a BPE of this size, trained on the corpus or read from the cache."""
    # By the training split, since other test documents leave the tokenizer as it is.
    identity = {"name": "bpe", "vocab_size": vocab_size, "trained_on": corpus.train_fingerprint}
    path = cache_dir() / "tokenizers" / f"{digest_of(identity)}.json"
    cached = read_sealed(path)
    if cached is None:
        with cache_lock(path.with_suffix(".lock")):
            # another process may have made it meanwhile
            cached = read_sealed(path) or _trained_bpe(corpus, vocab_size, path)
    return Tokenizer("bpe", cached["definition"])


def _trained_bpe(corpus: TrainingCorpus, vocab_size: int, path: Path) -> dict[str, Any]:
    """Train a BPE on the corpus and write it to the cache; return what was written."""
    say(f"training the tokenizer of {vocab_size:,} tokens")
    texts = (document.text.decode() for document in corpus.read() if document.split == "train")
    # The library does not return to Python while it trains, so Ctrl-C would do nothing for minutes.
    cached = {"definition": run_interruptible(lambda: _train_bpe(texts, vocab_size))}
    write_sealed(path, cached)
    return cached


def _train_bpe(texts: Iterable[str], vocab_size: int) -> str:
    """Train a byte-level BPE and return its JSON."""
    from tokenizers import Tokenizer as LibraryTokenizer
    from tokenizers import decoders, models, pre_tokenizers, trainers

    library = LibraryTokenizer(models.BPE())
    # A space that is not in the text would be trained on and decoded with it.
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    # The library returns the alphabet in another order at each call.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(texts, trainer)
    return str(library.to_str())


def _hf(corpus: TrainingCorpus | None, *, path: str, revision: str) -> Tokenizer:
    """Return the tokenizer in a local file, or else on the hub. Raises UserError, RunError."""
    file = _definition_file(path)
    if not is_file(file):
        file = _download(path, revision)
    try:
        return _of_definition(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError("tokenizer.path", path, f"cannot be read ({error.strerror})") from error
    except Exception as error:  # the library raises bare Exception for a file it cannot take
        problem = f"is not a tokenizer of the `tokenizers` library ({str(error)[:100]})"
        raise UserError("tokenizer.path", path, problem) from error


@functools.lru_cache(maxsize=4)
def _of_definition(definition: str) -> Tokenizer:
    """Return the tokenizer of a definition. Planning a run needs it eight times, at up to 0.2 s each."""
    return Tokenizer("hf", definition)


def _definition_file(path: str) -> Path:
    """Return the `tokenizer.json` in a local folder, or the path itself, which may be a name on the hub."""
    local = expanded(path)
    return local / "tokenizer.json" if is_folder(local) else local


def _download(name: str, revision: str) -> Path:
    """Return the file of a tokenizer on the hub; without a network, from the cache of the hub's library."""
    # Asked before the import: the library reads HF_HUB_OFFLINE, which this may set, when it is imported.
    is_online = reachable()
    from huggingface_hub import hf_hub_download

    from posenc.data.download_bar import download_bar

    try:
        file = hf_hub_download(
            name,
            "tokenizer.json",
            revision=revision,
            # Otherwise the library would try the network first, for 23 s.
            local_files_only=not is_online,
            tqdm_class=download_bar(name),
        )
    except Exception as error:  # five packages have errors of their own
        ways_out = "tokenizer.path=FILE (a tokenizer.json); tokenizer=bpe"
        cause = error if is_online else None  # offline the error only says that the cache does not have it
        raise not_loaded(f"the tokenizer {name}", cause, ways_out) from error
    return Path(file)


BUILDERS: dict[str, Callable[..., Tokenizer]] = {"bytes": _bytes, "bpe": _bpe, "hf": _hf}
