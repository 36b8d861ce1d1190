"""Documents, the split each one belongs to, and the fingerprint of a corpus."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Document:
    """One text. `text` is UTF-8; `split` is None until the registry assigns one.

    `id` is unique in its corpus and relative to it, so that moving a folder changes nothing.
    """

    id: str
    text: bytes
    split: str | None


def split_of(document_id: str, fractions: Mapping[str, float]) -> str:
    """Return the split of a document from a hash of its id alone: other documents never move it.

    `fractions` holds the shares of `validation` and `test`; the rest is `train`.
    """
    point = hash_fraction(_utf8(document_id))
    if point < fractions["test"]:
        return "test"
    return "validation" if point < fractions["test"] + fractions["validation"] else "train"


def hash_fraction(content: bytes) -> float:
    """Return a number in [0, 1) that depends on the content alone."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64


class Fingerprint:
    """sha256 over id, split, length and text of documents that are added in the order of their ids."""

    def __init__(self) -> None:
        self._total = hashlib.sha256()

    def add(self, document: Document) -> None:
        name = _utf8(document.id)
        # lengths first, so that no two different corpora give the same stream of bytes
        self._total.update(f"{len(name)} {document.split} {len(document.text)}\n".encode())
        self._total.update(name)
        self._total.update(document.text)

    def hexdigest(self) -> str:
        return self._total.hexdigest()


def fingerprint(documents: Iterable[Document]) -> str:
    """Return the fingerprint (hex) of documents in any order."""
    total = Fingerprint()
    for document in sorted(documents, key=lambda d: d.id):
        total.add(document)
    return total.hexdigest()


def _utf8(name: str) -> bytes:
    # file names that are no valid text reach Python as lone surrogates
    return name.encode("utf-8", "surrogatepass")
