"""What can be known of a corpus before it is tokenised: sizes, splits, fingerprint."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import digest_of, read_sealed, write_sealed
from posenc.core.errors import RunError
from posenc.core.paths import cache_dir
from posenc.data.documents import SPLITS, Document, fingerprint
from posenc.data.registry import is_streamed, pinned_identity, read_documents
from posenc.data.streamed import documents_of, reading_alone, streamed_entry, take_in
from posenc.data.tally import Tally

FACTS = 2  # raised when a source makes other documents of the same data, or a figure is added
log = logging.getLogger(__name__)


@dataclass
class CorpusFacts:
    """A corpus in figures; per split where it says so.

    `identity` is plain JSON for the hash of a run. `loaded` keeps the documents between `inspect` and
    `prepare`, so that nothing is read twice; `prepare` lets go of them. Those of a stream are never held:
    they lie on disk as the corpus's bytes.
    """

    name: str
    fingerprint: str  # over all documents and their splits
    train_fingerprint: str  # over the training split: what a tokenizer is trained on
    documents: dict[str, int]
    bytes: dict[str, int]
    longest: dict[str, int]  # bytes of the longest document
    holding: dict[str, list[int]]  # [k]: documents that hold a window of 2^k bytes
    identity: dict[str, Any]
    data: dict[str, Any] = field(repr=False)
    repeats: list[str] = field(default_factory=list)  # splits whose texts are all in the training split
    loaded: list[Document] | None = field(default=None, repr=False)

    def fetch(self) -> None:
        """Have the text here, read again only where it was let go of or came from the cache of facts.

        Raises RunError when it has changed since, or is out of reach.
        """
        if is_streamed(self.data):
            key = _key(self.data, pinned_identity(self.data))
            with reading_alone(key):
                if streamed_entry(self.fingerprint) is None:
                    self._same(take_in(self.data, key)["fingerprint"])
        elif self.loaded is None:
            again = read_documents(self.data)
            self._same(fingerprint(again))
            self.loaded = again

    def read(self) -> Iterable[Document]:
        """The documents, one split after the other and by id within it. Raises RunError as `fetch`."""
        self.fetch()
        if self.loaded is None:
            return documents_of(self.fingerprint)
        return sorted(self.loaded, key=lambda d: (SPLITS.index(str(d.split)), d.id))

    def reaching(self, split: str, window: int) -> int:
        """How many documents of a split hold a window of so many bytes. Raises RunError as `fetch`.

        Powers of two are among the figures; for others the documents have to be here.
        """
        counts, power = self.holding[split], window.bit_length() - 1
        if power >= len(counts) or window == 2**power:
            return counts[power] if power < len(counts) else 0
        bytes_here = None if self.loaded is not None else streamed_entry(self.fingerprint)
        if bytes_here is not None:
            return int((bytes_here.splits[split].lengths > window).sum())
        return sum(len(document.text) > window for document in self.read() if document.split == split)

    def _same(self, found: str) -> None:
        if found != self.fingerprint:
            raise RunError(f"the text of {self.name} is not what it was when it was looked at first")


def read_facts(data: Mapping[str, Any]) -> CorpusFacts:
    """The facts of a corpus; of a pinned one from the cache, without loading it again.

    Raises UserError for wrong settings or unreadable input, RunError when a source is out of reach.
    """
    pinned = pinned_identity(data)
    known = known_figures(pinned)
    loaded: list[Document] | None = None
    if known is None and is_streamed(data):
        key = _key(data, pinned)
        with reading_alone(key):
            known = known_figures(pinned)  # another process may have read it while this one waited
            if known is None:
                known = take_in(data, key)
                _remember(data, pinned, known)
    elif known is None:
        loaded = read_documents(data)
        tally = Tally()
        for document in loaded:
            tally.add(document)
        known = tally.figures()
        _remember(data, pinned, known)
    identity = pinned or {"name": data["name"], "fingerprint": known["fingerprint"]}
    return CorpusFacts(name=data["name"], identity=identity, data=dict(data), loaded=loaded, **known)


def known_figures(pinned: dict[str, Any] | None) -> dict[str, Any] | None:
    """What is remembered of a pinned corpus, if anything is."""
    return None if pinned is None else read_sealed(_place(pinned))


def _remember(data: Mapping[str, Any], pinned: dict[str, Any] | None, figures: dict[str, Any]) -> None:
    if pinned is None:
        return
    path = _place(pinned)
    try:
        write_sealed(path, figures)
    except OSError as error:
        name, reason = data["name"], error.strerror
        log.warning("cannot remember the facts of %s in %s: %s", name, path.parent, reason)


def _place(pinned: dict[str, Any]) -> Path:
    return cache_dir() / "identity" / f"{digest_of([FACTS, pinned])}.json"


def _key(data: Mapping[str, Any], pinned: dict[str, Any] | None) -> str:
    return digest_of([FACTS, pinned or dict(data)])
