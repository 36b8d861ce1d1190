"""A corpus: its sizes, splits and fingerprint, whether it is enough, and its tokens."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from posenc.core.atomic_files import digest_of, read_sealed, write_sealed
from posenc.core.console import say
from posenc.core.errors import RunError, UserError, plural, visible
from posenc.core.paths import cache_dir, choice_files
from posenc.data import sources
from posenc.data.documents import SPLITS, Document, Notes, fingerprint_of
from posenc.data.token_cache import TokenStore, entry_of, open_entry, write_entry
from posenc.data.tokenizers import build_tokenizer, cache_lock, check_tokenizer
from posenc.results.statistics import FEW_DOCUMENTS, MIN_DOCUMENTS

BYTES = {"name": "bytes"}
FACTS = 3  # raised when a source makes other documents of the same data, or a figure is added
FEW = 0.5  # the user is told if windows reach at most this share of the training text
# the first line of a corpus's YAML: what it is (licence; size)
ABOUT = re.compile(r"#\s*(.+?)\s*(?:\(([^()]*);([^();]*)\)\s*)?")
log = logging.getLogger(__name__)


@dataclass
class CorpusFacts:
    """A corpus in figures; `loaded` keeps its documents until `prepare`, so that nothing is read twice."""

    name: str
    fingerprint: str  # over all documents and their splits
    train_fingerprint: str  # over the training split: what a tokenizer is trained on
    sizes: dict[str, list[int]] = field(repr=False)  # bytes of each document, by id
    copies: dict[str, int]  # of each split's documents how many have the text of a training document
    notes: list[str]  # what was not read, and how documents were made, a line each
    identity: dict[str, Any]  # plain JSON for the hash of a run
    data: dict[str, Any] = field(repr=False)
    loaded: list[Document] | None = field(default=None, repr=False)

    def read(self) -> list[Document]:
        """Return the documents, by id: the ones kept, those of the cache, or read again and not changed."""
        if self.loaded is None:
            self.loaded = _cached_text(self.fingerprint) or sources.read_documents(self.data, Notes())
            if fingerprint_of(self.loaded) != self.fingerprint:
                raise RunError(f"the text of {self.name} has changed since it was first read")
        return self.loaded


def read_facts(data: Mapping[str, Any]) -> CorpusFacts:
    """Return the facts of a corpus; those of a pinned one come from the cache, without loading it again."""
    pinned, documents = sources.pinned_identity(data), None
    if (known := known_figures(pinned)) is None:
        notes = Notes()
        if pinned is not None:
            say(visible(f"reading {data['name']} from the hub"))
        documents = sources.read_documents(data, notes)
        known = _figures_of(documents, notes)
    identity = pinned or {"name": data["name"], "fingerprint": known["fingerprint"]}
    facts = CorpusFacts(data["name"], **known, identity=identity, data=dict(data), loaded=documents)
    if pinned is not None and documents is not None:
        prepare(data, BYTES, facts)  # keeps the text: no tokenizer after this one needs the network
        with cache_lock(_figures_file(pinned).with_suffix(".lock"), 0):
            write_sealed(_figures_file(pinned), known)
    return facts


def _figures_of(documents: list[Document], notes: Notes) -> dict[str, Any]:
    """Return the fields of `CorpusFacts` that follow from documents, in the order of their ids."""
    by_split = {name: [d for d in documents if d.split == name] for name in SPLITS}
    trained = {d.text for d in by_split["train"]}
    copies = {name: sum(d.text in trained for d in by_split[name]) for name in SPLITS[1:]}
    of = {name: plural(len(mine), f"{name} document") for name, mine in by_split.items()}
    told = [f"also in the training split: {n:,} of {of[name]}" for name, n in copies.items() if n]
    return {
        "fingerprint": fingerprint_of(documents),
        "train_fingerprint": fingerprint_of(by_split["train"]),
        "sizes": {name: [len(d.text) for d in mine] for name, mine in by_split.items()},
        "copies": copies,
        "notes": notes.text() + told,
    }


def known_figures(pinned: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the cached figures of a pinned corpus, if any."""
    return None if pinned is None else read_sealed(_figures_file(pinned))


def _figures_file(pinned: dict[str, Any]) -> Path:
    return cache_dir() / "identity" / f"{digest_of([FACTS, pinned])}.json"


def _cached_text(found: str) -> list[Document] | None:
    if (store := open_entry(entry_of(found, BYTES))) is None:
        return None
    documents = []
    for split, mine in store.splits.items():
        texts = (store.document(split, i).tobytes() for i in range(len(mine.ids)))
        documents += [Document(name, text, split) for name, text in zip(mine.ids, texts, strict=True)]
    return sorted(documents, key=lambda document: document.id)


def prepare(
    data: Mapping[str, Any], tokenizer: Mapping[str, Any], facts: CorpusFacts | None = None
) -> TokenStore:
    """Return the corpus as tokens, from the cache or put there now, and let go of its documents."""
    facts = facts or read_facts(data)
    chosen = build_tokenizer(tokenizer, facts)
    entry = entry_of(facts.fingerprint, chosen.identity())
    store = open_entry(entry)
    if store is None:
        text = sum(map(sum, facts.sizes.values()))  # about as large as its tokens
        with cache_lock(entry.with_suffix(".lock"), text):
            # another process may have built it while this one waited
            if (store := open_entry(entry)) is None:
                if entry.exists():
                    log.warning("the token cache %s is damaged; it is built again", entry)
                write_entry(entry, facts.name, facts.fingerprint, chosen, facts.read())
                log.info("tokenised %s into %s", facts.name, entry)
                store = open_entry(entry)
    if store is None:
        raise RunError(f"what was written to {entry} does not read back the same")
    facts.loaded = None
    return store


def inspect(
    data: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    *,
    splits: Sequence[str],
    needed_tokens: int,
    context_length: int | None,
) -> CorpusFacts:
    """Check what needs no tokens, and return the facts: every split with `context_length`, else `splits`.

    A document has at most as many tokens as bytes: what is refused cannot work.
    """
    check_tokenizer(tokenizer)
    facts = read_facts(data)
    for each in SPLITS if context_length is not None else splits:
        if not facts.sizes[each]:
            counts = ", ".join(f"{name} {len(facts.sizes[name])}" for name in SPLITS)
            problem = f"the {each} split is empty (documents: {counts})"
            hint = "splits hold whole documents: give more text, or larger shares in data.split"
            raise UserError("data", facts.name, problem, hint=hint)
    for split in splits if context_length is not None else ():
        if facts.copies.get(split) == len(facts.sizes[split]):
            problem = f"every document of the {split} split has the text of a training document"
            raise UserError("data", facts.name, problem, hint="give documents that differ")
    check_lengths(facts, splits=splits, needed_tokens=needed_tokens, context_length=context_length)
    return facts


def check_lengths(
    text: CorpusFacts | TokenStore, *, splits: Sequence[str], needed_tokens: int, context_length: int | None
) -> None:
    """Check that documents are long enough: roughly, in bytes, or exactly, in tokens. Raises UserError."""
    unit = "tokens" if isinstance(text, TokenStore) else "bytes"
    checks = [("eval.lengths", split, needed_tokens) for split in splits]
    if context_length is not None:  # a window of n inputs has n targets, one place further on
        checks.insert(0, ("context_length", "train", context_length + 1))
    for key, name, least in checks:
        if (have := max(text.sizes[name], default=0)) < least:
            problem = f"no document of the {name} split is that long: the longest has {have} {unit}"
            raise UserError(key, least - 1, problem, hint=f"the longest that works is {have - 1}")


def corpus_notes(
    facts: CorpusFacts, split: str, window: int, context_length: int, store: TokenStore | None = None
) -> list[str]:
    """Return what to know of a corpus before training, a line each; in tokens with `store`, else in bytes."""
    sizes, unit = (facts.sizes, "bytes") if store is None else (store.sizes, "tokens")
    notes, train = list(facts.notes), sizes["train"]
    fits = [size for size in train if size > context_length]
    if sum(fits) <= FEW * sum(train):
        notes.append(
            f"only {len(fits):,} of {plural(len(train), 'training document')} "
            f"{'is' if len(fits) == 1 else 'are'} longer than {context_length} {unit}, "
            f"{sum(fits) / max(1, sum(train)):.0%} of the text: nothing else is trained on"
        )
    if (count := sum(size > window for size in sizes[split])) < FEW_DOCUMENTS:
        documents, verb = plural(count, f"{split} document"), "is" if count == 1 else "are"
        ci = f"a 95% CI is rough below {FEW_DOCUMENTS}"
        if count < MIN_DOCUMENTS:
            ci = f"too few for a 95% CI, which needs {MIN_DOCUMENTS}"
        notes.append(f"{documents} {verb} longer than {window} {unit}: {ci}")
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
        pinned = sources.pinned_identity(settings) if sources.is_streamed(settings) else None
        rows.append({**row, "network": pinned is not None, "cached": known_figures(pinned) is not None})
    return rows
