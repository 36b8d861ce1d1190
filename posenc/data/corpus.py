"""A corpus: its figures (sizes, splits, fingerprint), its documents, and its tokens."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import digest_of, read_sealed, write_sealed
from posenc.core.console import say
from posenc.core.errors import RunError, plural, visible
from posenc.core.paths import cache_dir
from posenc.data import sources
from posenc.data.cache_lock import cache_lock
from posenc.data.documents import SPLITS, Document, Notes, fingerprint_of
from posenc.data.tasks.instances import TaskInstances
from posenc.data.token_cache import TokenStore, entry_of, open_entry, task_store, write_entry
from posenc.data.tokenizers import build_tokenizer
from posenc.settings.tree import DataSettings, TokenizerSettings

BYTES = TokenizerSettings(name="bytes")  # the tokenizer of the trigram, the reference of fixed-target
BYTES_IN_CACHE = {"name": "bytes"}  # the same tokenizer, as the token cache knows it
FIGURES_VERSION = 3  # raised when a source makes other documents of the same data, or figures are added
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Figures:
    """The sizes and hashes of a corpus. Those of a pinned corpus, which cannot change, are cached."""

    fingerprint: str  # over all documents and their splits
    train_fingerprint: str  # over the training split, on which a tokenizer is trained
    sizes: dict[str, list[int]] = field(repr=False)  # bytes of each document in the order of ids, by split
    copies: dict[str, int]  # how many documents of each held-out split have the text of a training document
    notes: list[str]  # a line each: what was not read, how documents were made


class CorpusText:
    """The documents of a corpus. They are read once, and stay in memory until they are released."""

    def __init__(self, data: DataSettings, fingerprint: str, documents: list[Document] | None = None) -> None:
        self._data = data
        self._fingerprint = fingerprint
        self._documents = documents

    @property
    def is_loaded(self) -> bool:
        """Tell whether the documents are in memory."""
        return self._documents is not None

    def read(self) -> list[Document]:
        """Return the documents in the order of their ids: from memory, from the cache, or read again.

        Raises RunError if the text has changed since its fingerprint was taken.
        """
        if self._documents is None:
            documents = _cached_documents(self._fingerprint)
            if documents is None:
                documents = sources.read_documents(self._data, Notes())
            # The user may have edited a file between the plan of a sweep and its last job.
            if fingerprint_of(documents) != self._fingerprint:
                raise RunError(f"the text of {self._data.name} has changed since it was first read")
            self._documents = documents
        return self._documents

    def release(self) -> None:
        """Drop the documents from memory."""
        self._documents = None


@dataclass(frozen=True)
class CorpusFacts:
    """A corpus: its figures, and its text if it is needed."""

    name: str
    figures: Figures
    identity: dict[str, Any]  # plain JSON for the hash of a run
    # Two facts with equal figures are equal, whether their text is in memory or not.
    text: CorpusText = field(repr=False, compare=False)
    task: TaskInstances | None = None  # if given, there is no text

    @property
    def fingerprint(self) -> str:
        return self.figures.fingerprint

    @property
    def train_fingerprint(self) -> str:
        return self.figures.train_fingerprint

    @property
    def sizes(self) -> dict[str, list[int]]:
        return self.figures.sizes

    @property
    def notes(self) -> list[str]:
        return self.figures.notes

    def read(self) -> list[Document]:
        """Return the documents, as CorpusText.read does."""
        return self.text.read()

    def release(self) -> None:
        """Drop the documents from memory. Those of all jobs of a sweep may be gigabytes."""
        self.text.release()


# --- Facts


def read_facts(data: DataSettings) -> CorpusFacts:
    """Return the facts of a corpus. A pinned corpus is read once; later its figures come from the cache.

    Raises UserError for wrong settings, and RunError if the hub does not give the text.
    """
    pinned = sources.pinned_identity(data)
    if sources.is_task(data):
        assert pinned is not None
        return _facts_of_task(data, pinned)
    if pinned is None:
        documents, figures = _read_figures(data)
        # Local files have no version, so nothing but their text identifies them.
        identity = {"name": data.name, "fingerprint": figures.fingerprint}
        return CorpusFacts(data.name, figures, identity, CorpusText(data, figures.fingerprint, documents))
    cached = known_figures(pinned)
    if cached is not None:
        return CorpusFacts(data.name, cached, pinned, CorpusText(data, cached.fingerprint))
    say(visible(f"reading {data.name} from the hub"))
    documents, figures = _read_figures(data)
    facts = CorpusFacts(data.name, figures, pinned, CorpusText(data, figures.fingerprint, documents))
    prepare(data, BYTES, facts)  # caches the text as bytes, so that no tokenizer needs the network again
    # The figures come last: whoever finds them finds the text in the cache, even if a kill came in between.
    with cache_lock(_figures_file(pinned).with_suffix(".lock")):
        write_sealed(_figures_file(pinned), asdict(figures))
    return facts


def _facts_of_task(data: DataSettings, identity: dict[str, Any]) -> CorpusFacts:
    """Return the facts of a task, which has no documents."""
    # A task has no text, so what decides its instances stands for it.
    fingerprint = digest_of(identity)
    sizes: dict[str, list[int]] = {split: [] for split in SPLITS}
    figures = Figures(fingerprint, fingerprint, sizes, copies={}, notes=[])
    text = CorpusText(data, fingerprint)
    return CorpusFacts(identity["name"], figures, identity, text, sources.task_instances(data))


def _read_figures(data: DataSettings) -> tuple[list[Document], Figures]:
    """Read the documents of a corpus, and return them with their figures."""
    notes = Notes()
    documents = sources.read_documents(data, notes)
    return documents, figures_of(documents, notes)


def figures_of(documents: list[Document], notes: Notes) -> Figures:
    """Return the figures of documents that are in the order of their ids."""
    by_split: dict[str, list[Document]] = {}
    for split in SPLITS:
        by_split[split] = [document for document in documents if document.split == split]
    # A set of texts and not of hashes: the texts are in memory already, and a set holds references.
    train_texts = {document.text for document in by_split["train"]}
    copies = {}
    remarks = []
    for split in SPLITS[1:]:
        copies[split] = sum(document.text in train_texts for document in by_split[split])
        if copies[split]:
            count = plural(len(by_split[split]), f"{split} document")
            remarks.append(f"also in the training split: {copies[split]:,} of {count}")
    return Figures(
        fingerprint=fingerprint_of(documents),
        train_fingerprint=fingerprint_of(by_split["train"]),
        sizes={split: [len(document.text) for document in by_split[split]] for split in SPLITS},
        copies=copies,
        notes=notes.lines() + remarks,
    )


def known_figures(pinned: dict[str, Any] | None) -> Figures | None:
    """Return the cached figures of a pinned corpus; None if there are none."""
    if pinned is None:
        return None
    # None if the file is damaged. Then the corpus is read again.
    values = read_sealed(_figures_file(pinned))
    return None if values is None else Figures(**values)


def _figures_file(pinned: dict[str, Any]) -> Path:
    return cache_dir() / "identity" / f"{digest_of([FIGURES_VERSION, pinned])}.json"


def _cached_documents(fingerprint: str) -> list[Document] | None:
    """Return the documents of a corpus whose bytes are in the token cache; None if they are not."""
    store = open_entry(entry_of(fingerprint, BYTES_IN_CACHE))
    if store is None:
        return None
    documents = []
    for split_name, split in store.splits.items():
        for i, document_id in enumerate(split.ids):
            text = store.document(split_name, i).tobytes()
            documents.append(Document(document_id, text, split_name))
    # The cache has them split by split, and the fingerprint is taken in the order of ids.
    return sorted(documents, key=lambda document: document.id)


def document_ids(facts: CorpusFacts, split: str) -> list[str] | None:
    """Return the ids of a split's documents, in the order of its sizes; None if their text must be read."""
    if facts.text.is_loaded:
        return [document.id for document in facts.read() if document.split == split]
    # The text of a pinned corpus is not in memory, but its ids are in a small file beside its bytes.
    store = open_entry(entry_of(facts.fingerprint, BYTES_IN_CACHE))
    return None if store is None else store.splits[split].ids


def training_texts(fingerprint: str) -> set[bytes]:
    """Return the texts of the training split of a corpus, if it is in the cache; else an empty set."""
    documents = _cached_documents(fingerprint) or []
    return {document.text for document in documents if document.split == "train"}


# --- Tokens


def tokens_in_cache(tokenizer: TokenizerSettings, facts: CorpusFacts) -> TokenStore | None:
    """Return the tokens of a corpus if they are in the cache. Nothing is tokenised or written."""
    if facts.task is not None or tokenizer.name == "bpe":  # building that one would train it
        return None
    return open_entry(entry_of(facts.fingerprint, build_tokenizer(tokenizer, facts).identity()))


def prepare(data: DataSettings, tokenizer: TokenizerSettings, facts: CorpusFacts | None = None) -> TokenStore:
    """Return the tokens of a corpus, from the cache or newly written to it. Drops its documents from memory.

    Raises RunError if the cache cannot be written or read.
    """
    facts = facts or read_facts(data)
    if facts.task is not None:
        return task_store(facts.fingerprint, facts.task)
    # Before the entry is looked for, since its key holds the tokenizer's definition, which may have to be
    # trained.
    built = build_tokenizer(tokenizer, facts)
    entry = entry_of(facts.fingerprint, built.identity())
    store = open_entry(entry)
    if store is None:
        text_size = sum(map(sum, facts.sizes.values()))  # about as large as its tokens
        with cache_lock(entry.with_suffix(".lock"), text_size):
            store = open_entry(entry)  # another process may have written it while this one waited
            if store is None:
                if entry.exists():
                    log.warning("the token cache %s is damaged; it is built again", entry)
                write_entry(entry, facts.name, facts.fingerprint, built, facts.read())
                log.info("tokenised %s into %s", facts.name, entry)
                store = open_entry(entry)
    if store is None:
        raise RunError(f"what was written to {entry} does not read back the same")
    # Tokens are mapped from the file from here on, so the text would be in memory twice.
    facts.release()
    return store
