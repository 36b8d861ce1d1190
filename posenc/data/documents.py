"""Documents, the split and group each one belongs to, and the fingerprint of a corpus."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SPLITS = ("train", "validation", "test")
KINDS = 6  # of what is not read, named one by one


@dataclass(frozen=True)
class Document:
    """One text. `text` is UTF-8; `split` is None until the registry assigns one.

    `id` is unique in its corpus and relative to it, so that moving a folder changes nothing.
    """

    id: str
    text: bytes
    split: str | None


@dataclass
class Notes:
    """What a source does not read, by kind, and how it makes documents of the rest."""

    not_read: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    def text(self) -> list[str]:
        """Return what the user is told, a line each."""
        kinds = self.not_read.most_common()
        named = [f"{count:,} {kind}" for kind, count in kinds[:KINDS] if count]
        if rest := sum(count for _, count in kinds[KINDS:]):
            named.append(f"{rest:,} others")
        return [*([f"not read: {', '.join(named)}"] if named else []), *self.lines]


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


def groups_of(ids: Sequence[str]) -> list[int] | None:
    """Number the groups of documents by first appearance; None where every document is alone.

    A group is the first folder in which paths differ (SymPy's subpackages, a folder for each author); a
    document that lies in none is alone.
    """
    paths = [one.split("/") for one in ids]
    folders = [path[:-1] for path in paths] or [[]]
    shared = itertools.takewhile(
        lambda pair: pair[0] == pair[1], zip(min(folders), max(folders), strict=False)
    )
    depth = len(list(shared)) + 1
    numbers: dict[tuple[str, ...], int] = {}
    groups = [numbers.setdefault(tuple(path[:depth]), len(numbers)) for path in paths]
    return groups if len(numbers) < len(ids) else None


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


def _utf8(name: str) -> bytes:
    # file names that are no valid text reach Python as lone surrogates
    return name.encode("utf-8", "surrogatepass")
