"""Documents: their splits, their groups, and the fingerprint of a corpus."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from posenc.core.errors import UserError, visible

# `split_by_text` divides its hash in this order, so another order would move documents between splits.
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Document:
    """A text of a corpus."""

    id: str  # unique in its corpus, such as the path of a file in its folder
    text: bytes  # UTF-8
    split: str | None  # None until a split is assigned


@dataclass
class Notes:
    """What a user should know of how a corpus was read. A source adds to it while it yields documents."""

    left_out: Counter[str] = field(default_factory=Counter)  # how many files or rows, by reason
    examples: dict[str, str] = field(default_factory=dict)  # by reason: a file whose name does not show it
    remarks: list[str] = field(default_factory=list)  # such as how documents were made

    def lines(self) -> list[str]:
        """Return the notes as lines. The first one says what was left out: `not read: 3 empty, 1 .pdf`."""
        # By name where counts are equal, so that the line does not depend on the order of files.
        most_first = sorted(self.left_out.items(), key=lambda item: (-item[1], item[0]))
        counts = [self._count(kind, count) for kind, count in most_first if count]
        if not counts:
            return list(self.remarks)
        return [f"not read: {', '.join(counts)}", *self.remarks]

    def _count(self, kind: str, count: int) -> str:
        """Return `12 .pdf`, or `2 not UTF-8 (such as old.txt)`."""
        if kind not in self.examples:
            return f"{count:,} {kind}"
        example = visible(self.examples[kind])
        if count > 1:
            example = f"such as {example}"
        return f"{count:,} {kind} ({example})"


def split_of(document_id: str, shares: Mapping[str, float]) -> str:
    """Return the split of a document, by a hash of its id alone. So other documents never move it."""
    # By the id and not by the text, so that a corrected typing error leaves a document in its split.
    point = hash_fraction(_utf8(document_id))
    if point < shares["test"]:
        return "test"
    if point < shares["test"] + shares["validation"]:
        return "validation"
    return "train"


def hash_fraction(content: bytes) -> float:
    """Return a number in [0, 1) that depends on the content alone."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64


def groups_of(ids: Sequence[str]) -> list[int] | None:
    """Return the number of each document's group; None if every document is a group of its own.

    A group is a folder, such as an author or a subpackage, at the first level at which the ids differ. Groups
    are numbered in the order in which they come.
    """
    paths = [document_id.split("/") for document_id in ids]
    folders = [path[:-1] for path in paths]
    shared_depth = _shared_depth(folders)
    numbers: dict[tuple[str, ...], int] = {}  # of the groups, by their folder
    groups: list[int] = []
    for path in paths:
        folder = tuple(path[: shared_depth + 1])
        groups.append(numbers.setdefault(folder, len(numbers)))
    # Groups of one document each say nothing that the documents do not say.
    return groups if len(numbers) < len(ids) else None


def _shared_depth(folders: Sequence[list[str]]) -> int:
    """Return how many names at their beginning all folders share."""
    if not folders:
        return 0
    # In alphabetical order, all folders share the names that the first and the last one share.
    depth = 0
    for name_of_first, name_of_last in zip(min(folders), max(folders), strict=False):
        if name_of_first != name_of_last:
            break
        depth += 1
    return depth


def fingerprint_of(documents: Iterable[Document]) -> str:
    """Return the sha256 over id, split, length and text of documents, which are in the order of their ids."""
    total = hashlib.sha256()
    for document in documents:
        name = _utf8(document.id)
        # with the lengths, no two different corpora give the same stream of bytes
        total.update(f"{len(name)} {document.split} {len(document.text)}\n".encode())
        total.update(name)
        total.update(document.text)
    return total.hexdigest()


def utf8_text(text: str, key: str, location: object) -> bytes:
    """Return a text as UTF-8. Raises UserError for half a surrogate pair, which is not a character.

    JSON can hold one (`"\\ud83d"`). Replaced by `?` it would change the text that a model is measured on.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        sign = visible(text[error.start])
        problem = f"holds {sign}, half of a character (a lone surrogate)"
        raise UserError(key, location, problem, hint="take it out, or write both halves") from error


def _utf8(name: str) -> bytes:
    """Encode the id of a document."""
    # file names that are not valid text reach Python as lone surrogates
    return name.encode("utf-8", "surrogatepass")
