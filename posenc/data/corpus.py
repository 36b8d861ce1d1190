"""A corpus: its sizes, splits and fingerprint, whether it is enough, and its tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import digest_of, read_sealed, write_sealed
from posenc.core.console import say
from posenc.core.errors import RunError, UserError, plural, visible
from posenc.core.paths import cache_dir
from posenc.data import sources
from posenc.data.cache_lock import cache_lock
from posenc.data.documents import SPLITS, Document, Notes, fingerprint_of
from posenc.data.tasks.instances import TaskInstances
from posenc.data.token_cache import TokenStore, entry_of, open_entry, task_store, write_entry
from posenc.data.tokenizers import build_tokenizer, check_tokenizer
from posenc.results.statistics.documents import FEW_DOCUMENTS, MIN_DOCUMENTS
from posenc.settings.tree import DataSettings, TokenizerSettings

BYTES = TokenizerSettings(name="bytes")
FIGURES_VERSION = 3  # raised when a source makes other documents of the same data, or a figure is added
SMALL_SHARE = 0.5  # the user is told if windows reach at most this share of the training text
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Figures:
    """The counts of a corpus. Those of a pinned corpus are cached."""

    fingerprint: str  # over all documents and their splits
    train_fingerprint: str  # over the training split, on which a tokenizer is trained
    sizes: dict[str, list[int]] = field(repr=False)  # bytes of each document in the order of ids, by split
    copies: dict[str, int]  # how many documents of each held-out split have the text of a training document
    notes: list[str]  # a line each: what was not read, how documents were made


class CorpusText:
    """The documents of a corpus. They are read once and kept until they are released."""

    def __init__(self, data: DataSettings, fingerprint: str, documents: list[Document] | None = None) -> None:
        self._data = data
        self._fingerprint = fingerprint
        self._documents = documents

    @property
    def is_loaded(self) -> bool:
        """Tell whether the documents are in memory."""
        return self._documents is not None

    def read(self) -> list[Document]:
        """Return the documents by id, from memory, from the cache, or read again.

        Raises RunError if they have changed since.
        """
        if self._documents is None:
            documents = _cached_documents(self._fingerprint)
            if documents is None:
                documents = sources.read_documents(self._data, Notes())
            if fingerprint_of(documents) != self._fingerprint:
                raise RunError(f"the text of {self._data.name} has changed since it was first read")
            self._documents = documents
        return self._documents

    def release(self) -> None:
        """Let go of the documents."""
        self._documents = None


@dataclass(frozen=True)
class CorpusFacts:
    """A corpus in figures, and its text."""

    name: str
    figures: Figures
    identity: dict[str, Any]  # plain JSON for the hash of a run
    text: CorpusText = field(repr=False, compare=False)
    task: TaskInstances | None = None  # instead of text

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
        """Return the documents, as CorpusText.read."""
        return self.text.read()

    def release(self) -> None:
        """Let go of the documents: those of all jobs of a sweep may be gigabytes."""
        self.text.release()


# --- Facts


def read_facts(data: DataSettings) -> CorpusFacts:
    """Return the facts of a corpus; those of a pinned one come from the cache, without loading it again.

    Raises UserError for wrong settings, RunError if the hub does not give the text.
    """
    pinned = sources.pinned_identity(data)
    if sources.is_task(data):
        assert pinned is not None
        return _facts_of_task(data, pinned)
    if pinned is None:
        documents, figures = _read_figures(data)
        identity = {"name": data.name, "fingerprint": figures.fingerprint}
        return CorpusFacts(data.name, figures, identity, CorpusText(data, figures.fingerprint, documents))
    cached = known_figures(pinned)
    if cached is not None:
        return CorpusFacts(data.name, cached, pinned, CorpusText(data, cached.fingerprint))
    say(visible(f"reading {data.name} from the hub"))
    documents, figures = _read_figures(data)
    facts = CorpusFacts(data.name, figures, pinned, CorpusText(data, figures.fingerprint, documents))
    prepare(data, BYTES, facts)  # keeps the text: no tokenizer after this one needs the network
    with cache_lock(_figures_file(pinned).with_suffix(".lock")):
        write_sealed(_figures_file(pinned), asdict(figures))
    return facts


def _facts_of_task(data: DataSettings, identity: dict[str, Any]) -> CorpusFacts:
    """Return the facts of a task, which has no documents."""
    fingerprint = digest_of(identity)
    sizes: dict[str, list[int]] = {split: [] for split in SPLITS}
    figures = Figures(fingerprint, fingerprint, sizes, copies={}, notes=[])
    text = CorpusText(data, fingerprint)
    return CorpusFacts(identity["name"], figures, identity, text, sources.task_instances(data))


def _read_figures(data: DataSettings) -> tuple[list[Document], Figures]:
    notes = Notes()
    documents = sources.read_documents(data, notes)
    return documents, figures_of(documents, notes)


def figures_of(documents: list[Document], notes: Notes) -> Figures:
    """Return the figures of documents, which are in the order of their ids."""
    by_split = {split: [document for document in documents if document.split == split] for split in SPLITS}
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
    """Return the cached figures of a pinned corpus, if any."""
    if pinned is None:
        return None
    values = read_sealed(_figures_file(pinned))
    return None if values is None else Figures(**values)


def _figures_file(pinned: dict[str, Any]) -> Path:
    return cache_dir() / "identity" / f"{digest_of([FIGURES_VERSION, pinned])}.json"


def _cached_documents(fingerprint: str) -> list[Document] | None:
    """Return the documents from their tokens of bytes; None if these are not cached."""
    store = open_entry(entry_of(fingerprint, {"name": "bytes"}))
    if store is None:
        return None
    documents = []
    for split_name, split in store.splits.items():
        for i, document_id in enumerate(split.ids):
            text = store.document(split_name, i).tobytes()
            documents.append(Document(document_id, text, split_name))
    return sorted(documents, key=lambda document: document.id)


def training_texts(fingerprint: str) -> set[bytes]:
    """Return the texts of the training split of a corpus that was read before; none if it is not cached."""
    documents = _cached_documents(fingerprint) or []
    return {document.text for document in documents if document.split == "train"}


# --- Tokens


def prepare(data: DataSettings, tokenizer: TokenizerSettings, facts: CorpusFacts | None = None) -> TokenStore:
    """Return the corpus as tokens, from the cache or after writing them there, and release its documents.

    Raises RunError if the cache cannot be written or read.
    """
    facts = facts or read_facts(data)
    if facts.task is not None:
        return task_store(facts.fingerprint, facts.task)
    built = build_tokenizer(tokenizer, facts)
    entry = entry_of(facts.fingerprint, built.identity())
    store = open_entry(entry)
    if store is None:
        text_size = sum(map(sum, facts.sizes.values()))  # about as large as its tokens
        with cache_lock(entry.with_suffix(".lock"), text_size):
            store = open_entry(entry)  # another process may have built it while this one waited
            if store is None:
                if entry.exists():
                    log.warning("the token cache %s is damaged; it is built again", entry)
                write_entry(entry, facts.name, facts.fingerprint, built, facts.read())
                log.info("tokenised %s into %s", facts.name, entry)
                store = open_entry(entry)
    if store is None:
        raise RunError(f"what was written to {entry} does not read back the same")
    facts.release()
    return store


# --- Is it enough?


def inspect(
    data: DataSettings,
    tokenizer: TokenizerSettings,
    *,
    splits: Sequence[str],
    needed_tokens: int,
    context_length: int | None,
) -> CorpusFacts:
    """Check whether the corpus is enough, as far as bytes can tell, and return its facts.

    `splits` are measured on windows of `needed_tokens`. With a `context_length` the corpus is trained on, and
    every split must hold documents; without it only those splits must. A document has at most as many tokens
    as bytes, so a corpus that is refused here cannot work. Raises UserError.
    """
    check_tokenizer(tokenizer)
    facts = read_facts(data)
    if facts.task is not None:
        if data.plant is not None:
            raise UserError("data.plant", "given", f"is planted in text, and {facts.name} has none")
        _check_task(facts.task, tokenizer, context_length)
        return facts
    is_trained_on = context_length is not None
    for split in SPLITS if is_trained_on else splits:
        if not facts.sizes[split]:
            raise _empty_split(facts, split)
    if is_trained_on:
        _refuse_copies(facts, splits)
    check_lengths(facts, splits=splits, needed_tokens=needed_tokens, context_length=context_length)
    return facts


def _check_task(task: TaskInstances, tokenizer: TokenizerSettings, context_length: int | None) -> None:
    """Check that the smallest instance fits into a training window. Raises UserError."""
    name = task.task.name
    if tokenizer.name != "bytes":
        raise UserError(
            "tokenizer", tokenizer.name, f"data.task={name} has tokens of its own", allowed="bytes"
        )
    if context_length is None or task.largest_size(context_length) is not None:
        return
    smallest = task.task.tokens(task.task.smallest)
    if context_length < smallest:
        hint = f"the smallest that works is {smallest}"
        raise UserError("context_length", context_length, f"no instance of {name} fits into it", hint=hint)
    largest = task.task.largest
    assert largest is not None
    problem = f"the alphabet of {name} ends before an instance fills it"
    hint = f"the largest that works is {task.task.tokens(largest)}"
    raise UserError("context_length", context_length, problem, hint=hint)


def _empty_split(facts: CorpusFacts, split: str) -> UserError:
    counts = ", ".join(f"{name} {len(facts.sizes[name])}" for name in SPLITS)
    problem = f"the {split} split is empty (documents: {counts})"
    hint = "splits hold whole documents: give more text, or larger shares in data.split"
    return UserError("data", facts.name, problem, hint=hint)


def _refuse_copies(facts: CorpusFacts, splits: Sequence[str]) -> None:
    """Raise UserError for a split that only repeats the training text."""
    for split in splits:
        if facts.figures.copies.get(split) == len(facts.sizes[split]):
            problem = f"every document of the {split} split has the text of a training document"
            raise UserError("data", facts.name, problem, hint="give documents that differ")


def check_lengths(
    text: CorpusFacts | TokenStore, *, splits: Sequence[str], needed_tokens: int, context_length: int | None
) -> None:
    """Check that documents are long enough: roughly in bytes, exactly in tokens. Raises UserError."""
    if text.task is not None:
        return
    unit = "tokens" if isinstance(text, TokenStore) else "bytes"
    if context_length is not None:
        # a window of n inputs has n targets, the last one token further on
        _check_longest("context_length", text.sizes["train"], context_length + 1, "train", unit)
    for split in splits:
        _check_longest("eval.lengths", text.sizes[split], needed_tokens, split, unit)


def _check_longest(key: str, sizes: Sequence[int], needed: int, split: str, unit: str) -> None:
    longest = max(sizes, default=0)
    if longest < needed:
        problem = f"no document of the {split} split is that long: the longest has {longest} {unit}"
        raise UserError(key, needed - 1, problem, hint=f"the longest that works is {longest - 1}")


def corpus_notes(
    facts: CorpusFacts, split: str, window: int, context_length: int, store: TokenStore | None = None
) -> list[str]:
    """Return what to know of a corpus before training, a line each; in tokens with `store`, else in bytes."""
    if facts.task is not None:
        return []
    sizes = facts.sizes if store is None else store.sizes
    unit = "bytes" if store is None else "tokens"
    notes = [
        *facts.notes,
        _short_documents_note(sizes["train"], context_length, unit),
        _few_documents_note(sizes[split], window, split, unit),
    ]
    return [note for note in notes if note]


def _short_documents_note(sizes: Sequence[int], context_length: int, unit: str) -> str | None:
    """Say so if most of the training text is in documents that no window fits into."""
    fitting = [size for size in sizes if size > context_length]
    share = sum(fitting) / max(1, sum(sizes))
    if sum(fitting) > SMALL_SHARE * sum(sizes):
        return None
    verb = "is" if len(fitting) == 1 else "are"
    documents = plural(len(sizes), "training document")
    return (
        f"only {len(fitting):,} of {documents} {verb} longer than {context_length} {unit}, "
        f"{share:.0%} of the text: nothing else is trained on"
    )


def _few_documents_note(sizes: Sequence[int], window: int, split: str, unit: str) -> str | None:
    """Say so if an interval over documents is rough."""
    count = sum(size > window for size in sizes)
    if count >= FEW_DOCUMENTS:
        return None
    verb = "is" if count == 1 else "are"
    interval = f"a 95% CI is rough below {FEW_DOCUMENTS}"
    if count < MIN_DOCUMENTS:
        interval = f"too few for a 95% CI, which needs {MIN_DOCUMENTS}"
    return f"{plural(count, f'{split} document')} {verb} longer than {window} {unit}: {interval}"
