"""A corpus: its sizes, splits and fingerprint, whether it is enough, and its tokens."""

from __future__ import annotations

import hashlib
import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from posenc.core.atomic_files import digest_of, read_sealed, write_sealed
from posenc.core.errors import RunError, UserError
from posenc.core.paths import cache_dir, choice_files
from posenc.data import registry
from posenc.data.documents import SPLITS, Document, Fingerprint, Notes
from posenc.data.progress import cache_lock, with_progress
from posenc.data.token_cache import (
    EntryWriter,
    TokenStore,
    build_entry,
    entry_of,
    open_entry,
    smallest_dtype,
    tokens_dir,
)
from posenc.data.tokenizers import ByteTokenizer, Tokenizer, build_tokenizer, check_tokenizer
from posenc.results.statistics import FEW_DOCUMENTS, MIN_DOCUMENTS

FACTS = 3  # raised when a source makes other documents of the same data, or a figure is added
FEW = 0.5  # share of the training text inside windows up to which the user is told
# the first line of a corpus's YAML: what it is (licence; size)
ABOUT = re.compile(r"#\s*(.+?)\s*(?:\(([^()]*);([^();]*)\)\s*)?")
log = logging.getLogger(__name__)


@dataclass
class CorpusFacts:
    """A corpus in figures, each by split.

    `identity` is plain JSON for the hash of a run. `loaded` keeps the documents between `inspect` and
    `prepare`, so that nothing is read twice; those of a stream lie on disk instead, as its bytes.
    """

    name: str
    fingerprint: str  # over all documents and their splits
    train_fingerprint: str  # over the training split: what a tokenizer is trained on
    sizes: dict[str, list[int]] = field(repr=False)  # bytes of each document, by id
    copies: dict[str, int]  # of each split's documents how many have the text of a training document
    notes: list[str]  # what was not read, and how documents were made, a line each
    identity: dict[str, Any]
    data: dict[str, Any] = field(repr=False)
    loaded: list[Document] | None = field(default=None, repr=False)

    def read(self) -> Iterable[Document]:
        """Return the documents, by id within each split; read again if need be.

        Raises RunError when the text has changed since, or is out of reach.
        """
        if registry.is_streamed(self.data):
            with _stream_lock(self.data):
                if open_entry(_stream_entry(self.fingerprint)) is None:
                    self._check_same(_read_stream(self.data, None)["fingerprint"])
            return _stream_documents(self.fingerprint)
        if self.loaded is None:
            documents = list(registry.read_documents(self.data, Notes()))
            self._check_same(_figures_of(documents, Notes())["fingerprint"])
            self.loaded = documents
        return self.loaded

    def _check_same(self, found: str) -> None:
        if found != self.fingerprint:
            raise RunError(f"the text of {self.name} has changed since it was first read")


def read_facts(data: Mapping[str, Any]) -> CorpusFacts:
    """Return the facts of a corpus; those of a pinned one come from the cache, without loading it again.

    Raises UserError for wrong settings or unreadable input, RunError when a source is out of reach.
    """
    pinned, loaded, notes = registry.pinned_identity(data), None, Notes()
    if registry.is_streamed(data):
        known = known_figures(pinned)
        if known is None:
            with _stream_lock(data):
                # another process may have read it while this one waited
                known = known_figures(pinned) or _read_stream(data, pinned)
    else:
        loaded = list(registry.read_documents(data, notes))
        known = _figures_of(loaded, notes)
    identity = pinned or {"name": data["name"], "fingerprint": known["fingerprint"]}
    return CorpusFacts(name=data["name"], identity=identity, data=dict(data), loaded=loaded, **known)


def _figures_of(documents: Iterable[Document], notes: Notes) -> dict[str, Any]:
    """Return the fields of `CorpusFacts` that follow from documents, in the order of their ids."""
    whole, train = Fingerprint(), Fingerprint()
    sizes: dict[str, list[int]] = {name: [] for name in SPLITS}
    texts: dict[str, list[bytes]] = {name: [] for name in SPLITS}
    for document in documents:
        split = str(document.split)
        whole.add(document)
        if split == "train":
            train.add(document)
        sizes[split].append(len(document.text))
        texts[split].append(hashlib.blake2b(document.text, digest_size=8).digest())
    trained = set(texts["train"])
    copies = {name: sum(text in trained for text in texts[name]) for name in SPLITS[1:]}
    told = [
        f"{count:,} of {len(sizes[name]):,} {name} documents have the text of a training document"
        for name, count in copies.items()
        if count
    ]
    return {
        "fingerprint": whole.hexdigest(),
        "train_fingerprint": train.hexdigest(),
        "sizes": sizes,
        "copies": copies,
        "notes": notes.text() + told,
    }


def known_figures(pinned: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the cached figures of a pinned corpus, if any."""
    return None if pinned is None else read_sealed(_figures_file(pinned))


def _figures_file(pinned: dict[str, Any]) -> Path:
    return cache_dir() / "identity" / f"{digest_of([FACTS, pinned])}.json"


# A stream is read once, onto the disk as an entry of bytes: memory stays small, and every tokenizer
# reads the bytes from there.
def _stream_key(data: Mapping[str, Any]) -> str:
    return digest_of([FACTS, registry.pinned_identity(data) or dict(data)])


def _stream_lock(data: Mapping[str, Any]) -> AbstractContextManager[None]:
    return cache_lock(tokens_dir() / f"{_stream_key(data)}.lock", "reading this corpus")


def _stream_entry(found: str) -> Path:
    return entry_of(found, ByteTokenizer().identity())


def _stream_documents(found: str) -> Iterator[Document]:
    store = open_entry(_stream_entry(found))
    if store is None:
        raise RunError(f"the cached text {found[:12]} is gone from {tokens_dir()}")
    for split in SPLITS:
        for i, name in enumerate(store.splits[split].ids):
            yield Document(name, store.document(split, i).tobytes(), split)


def _read_stream(data: Mapping[str, Any], pinned: dict[str, Any] | None) -> dict[str, Any]:
    """Read a stream into the cache, and return and cache its figures; needs its lock."""
    notes = Notes()
    with build_entry(_stream_key(data), ByteTokenizer()) as writer:
        documents = with_progress(registry.read_documents(data, notes), f"reading {data['name']}")
        figures = _figures_of(_written(documents, writer), notes)
        writer.finish(data["name"], figures["fingerprint"])
    if pinned is not None:
        write_sealed(_figures_file(pinned), figures)
    return figures


def _written(documents: Iterable[Document], writer: EntryWriter) -> Iterator[Document]:
    """Write each document to an entry as it passes."""
    one_by_one, texts = itertools.tee(documents)  # as far apart as a batch of the tokenizer
    encoded = writer.tokenizer.encode_all(document.text for document in texts)
    for document, (ids, sizes) in zip(one_by_one, encoded, strict=True):
        writer.add(document.id, str(document.split), ids, sizes)
        yield document


def prepare(
    data: Mapping[str, Any], tokenizer: Mapping[str, Any], facts: CorpusFacts | None = None
) -> TokenStore:
    """Return the corpus as tokens, from the cache or put there now.

    `facts` is what `inspect` returned for the same `data`; its documents are let go of. Raises UserError for
    wrong settings or an empty corpus, RunError when a source is out of reach or the cache cannot be written.
    """
    facts = facts if facts is not None else read_facts(data)
    chosen = build_tokenizer(tokenizer, facts)
    entry = entry_of(facts.fingerprint, chosen.identity())
    store = open_entry(entry) or _tokenise(entry, facts, chosen)
    facts.loaded = None
    return store


def _tokenise(entry: Path, facts: CorpusFacts, tokenizer: Tokenizer) -> TokenStore:
    """Build the entry, whichever process asks first."""
    doing, text = f"tokenising {facts.name}", sum(map(sum, facts.sizes.values()))
    width = smallest_dtype(tokenizer.vocab_size).itemsize
    # exact for bytes; else about, at four bytes of text a token
    size = text * width if tokenizer.name == "bytes" else text * (width + 4) // 4
    with cache_lock(entry.with_suffix(".lock"), doing, needed=size):
        store = open_entry(entry)  # another process may have built it while this one waited
        if store is not None:
            return store
        if entry.exists():
            log.warning("the token cache %s is damaged; it is built again", entry)
        with build_entry(entry.name, tokenizer) as writer:
            for _ in _written(with_progress(facts.read(), doing), writer):
                pass
            writer.finish(facts.name, facts.fingerprint)
        log.info("tokenised %s into %s", facts.name, entry)
        store = open_entry(entry)
        if store is None:
            raise OSError(f"what was written to {entry} does not read back the same")
        return store


def inspect(
    data: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    *,
    split: str,
    needed_tokens: int,
    context_length: int | None,
) -> CorpusFacts:
    """Check everything about a corpus that needs no tokens, and return its facts.

    `split` is the one to evaluate on, `needed_tokens` the longest window there + 1; without `context_length`
    only that split is checked. A document has at most as many tokens as bytes, so what is refused here cannot
    work; `check_lengths` is the exact test. Raises UserError for wrong settings, an empty split, a split that
    repeats the training text, or documents that are too short.
    """
    check_tokenizer(tokenizer)
    facts = read_facts(data)
    for each in SPLITS if context_length is not None else (split,):
        if not facts.sizes[each]:
            counts = ", ".join(f"{name} {len(facts.sizes[name])}" for name in SPLITS)
            problem = f"the {each} split is empty (documents: {counts})"
            hint = "splits hold whole documents: give more text, or larger shares in data.split"
            raise UserError("data", facts.name, problem, hint=hint)
    if context_length is not None and facts.copies.get(split) == len(facts.sizes[split]):
        problem = f"every document of the {split} split holds the same text as one of the training split"
        raise UserError("data", facts.name, problem, hint="give documents that differ")
    _check(facts.sizes, split, needed_tokens, context_length, "bytes")
    return facts


def check_lengths(store: TokenStore, *, split: str, needed_tokens: int, context_length: int | None) -> None:
    """Check the lengths of `inspect` exactly, in tokens. Raises UserError."""
    _check(store.sizes, split, needed_tokens, context_length, "tokens")


def _check(
    sizes: Mapping[str, Sequence[int]], split: str, needed: int, context_length: int | None, unit: str
) -> None:
    checks = [("eval.lengths", split, needed)]
    if context_length is not None:  # a window of n inputs has n targets, one place further on
        checks.insert(0, ("context_length", "train", context_length + 1))
    for key, name, least in checks:
        if (have := max(sizes[name], default=0)) < least:
            problem = f"no document of the {name} split is that long: the longest has {have} {unit}"
            raise UserError(key, least - 1, problem, hint=f"the longest that works is {have - 1}")


def corpus_notes(
    facts: CorpusFacts, split: str, window: int, context_length: int, store: TokenStore | None = None
) -> list[str]:
    """Return what to know of a corpus before training on it, a line each.

    `split` is the one to evaluate on, `window` the longest there; in tokens with `store`, else in bytes.
    """
    sizes, unit = (facts.sizes, "bytes") if store is None else (store.sizes, "tokens")
    notes, train = list(facts.notes), sizes["train"]
    fits = [size for size in train if size > context_length]
    if sum(fits) <= FEW * sum(train):
        notes.append(
            f"only {len(fits):,} of {len(train):,} training documents are longer than {context_length} "
            f"{unit}, {sum(fits) / max(1, sum(train)):.0%} of the text: nothing else is trained on"
        )
    count = sum(size > window for size in sizes[split])
    if count < FEW_DOCUMENTS:
        few = f"too few for a 95% CI, which needs {MIN_DOCUMENTS}"
        rough = f"a 95% CI is rough below {FEW_DOCUMENTS}"
        reach = f"{count} {split} documents are longer than {window} {unit}"
        notes.append(f"{reach}: {few if count < MIN_DOCUMENTS else rough}")
    return notes


def list_corpora() -> list[dict[str, Any]]:
    """Return a row for each choice of `data`: what it is, whether it needs a network or is cached."""
    rows = []
    for name, path in choice_files("data").items():
        text = path.read_text(encoding="utf-8")
        about = ABOUT.fullmatch(text.split("\n", 1)[0])
        settings = yaml.safe_load(text)
        description, licence, size = about.groups("") if about else ("", "", "")
        row = {"name": name, "description": description, "licence": licence.strip(), "size": size.strip()}
        source = {"source": str(settings["source"]), "network": registry.is_streamed(settings)}
        rows.append({**row, **source, "cached": _is_cached(settings)})
    return rows


def _is_cached(data: dict[str, Any]) -> bool:
    """Return whether the text of a pinned stream, at this revision and limit, is in the cache."""
    try:
        known = known_figures(registry.pinned_identity(data))
    except (UserError, RunError):  # incomplete (data.paths), or a branch that nobody can resolve now
        return False
    return known is not None and _stream_entry(known["fingerprint"]).is_dir()
