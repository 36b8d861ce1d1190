"""What can be known of a corpus before it is tokenised: sizes, splits, fingerprint."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posenc.corpus.documents import SPLITS, Document, fingerprint
from posenc.corpus.registry import pinned_identity, read_documents
from posenc.durable import digest_of, read_sealed, write_sealed
from posenc.errors import RunError
from posenc.paths import cache_dir

FACTS = 1  # raised when a source makes other documents of the same data
log = logging.getLogger(__name__)


@dataclass
class CorpusFacts:
    """A corpus in figures; per split where it says so.

    `identity` is plain JSON for the hash of a run. `loaded` keeps the documents between `inspect` and
    `prepare`, so that nothing is read twice; `prepare` lets go of them.
    """

    name: str
    fingerprint: str  # over all documents and their splits
    train_fingerprint: str  # over the training split: what a tokenizer is trained on
    documents: dict[str, int]
    bytes: dict[str, int]
    longest: dict[str, int]  # bytes of the longest document
    identity: dict[str, Any]
    data: dict[str, Any] = field(repr=False)
    loaded: list[Document] | None = field(default=None, repr=False)

    def read(self) -> list[Document]:
        """The documents, read again only where they were let go of or came from the cache of facts.

        Raises RunError when they have changed since.
        """
        if self.loaded is None:
            again = read_documents(self.data)
            if fingerprint(again) != self.fingerprint:
                raise RunError(f"the text of {self.name} is not what it was when it was looked at first")
            self.loaded = again
        return self.loaded


def read_facts(data: Mapping[str, Any]) -> CorpusFacts:
    """The facts of a corpus; of a pinned one from the cache, without loading it again.

    Raises UserError for wrong settings or unreadable input, RunError when a source is out of reach.
    """
    pinned = pinned_identity(data)
    if pinned is None:
        return _measure(data, None)
    path = cache_dir() / "identity" / f"{digest_of([FACTS, pinned])}.json"
    known = read_sealed(path)
    if known is not None:
        return CorpusFacts(name=data["name"], identity=pinned, data=dict(data), **known)
    facts = _measure(data, pinned)
    kept = ("fingerprint", "train_fingerprint", "documents", "bytes", "longest")
    try:
        write_sealed(path, {key: getattr(facts, key) for key in kept})
    except OSError as error:
        log.warning("cannot remember the facts of %s in %s: %s", facts.name, path.parent, error.strerror)
    return facts


def _measure(data: Mapping[str, Any], pinned: dict[str, Any] | None) -> CorpusFacts:
    documents = read_documents(data)
    sizes = {name: [len(d.text) for d in documents if d.split == name] for name in SPLITS}
    whole = fingerprint(documents)
    return CorpusFacts(
        name=data["name"],
        fingerprint=whole,
        train_fingerprint=fingerprint(d for d in documents if d.split == "train"),
        documents={name: len(some) for name, some in sizes.items()},
        bytes={name: sum(some) for name, some in sizes.items()},
        longest={name: max(some, default=0) for name, some in sizes.items()},
        identity=pinned or {"name": data["name"], "fingerprint": whole},
        data=dict(data),
        loaded=documents,
    )
