"""Documents: how one text is cut into them, the split and group of each, and the fingerprint of a corpus."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

SPLITS = ("train", "validation", "test")
# ` = Title = ` opens an article of WikiText; its sections have two or more signs on each side
TITLE = re.compile(r" = [^=\n]+ = ?\n?")
HEADING = re.compile(r"(#{1,6}) \S")
FENCE = re.compile(r" {0,3}(```|~~~)")
LEAST_SECTIONS = 30  # with fewer a split may be empty, or hold too few documents for an interval
CHUNKS, LEAST_CHUNK = 200, 4096  # how many, and characters of each: 40 test documents of a book of 1 MB


@dataclass(frozen=True)
class Document:
    """One text, UTF-8; `id` is unique and relative to its corpus, `split` None until one is assigned."""

    id: str
    text: bytes
    split: str | None


@dataclass
class Notes:
    """What a source does not read, by kind, and how it makes documents of the rest."""

    not_read: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    def text(self) -> list[str]:
        """Return the lines to show the user."""
        kinds = sorted(self.not_read.items(), key=lambda kind: (-kind[1], kind[0]))
        named = [f"{count:,} {kind}" for kind, count in kinds if count]
        return [*([f"not read: {', '.join(named)}"] if named else []), *self.lines]


def split_of(document_id: str, fractions: Mapping[str, float]) -> str:
    """Return the split of a document from a hash of its id alone: other documents never move it."""
    point, test = hash_fraction(_utf8(document_id)), fractions["test"]
    return "test" if point < test else "validation" if point < test + fractions["validation"] else "train"


def hash_fraction(content: bytes) -> float:
    """Return a number in [0, 1) that depends on the content alone."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") / 2**64


def groups_of(ids: Sequence[str]) -> list[int] | None:
    """Number the groups of documents by first appearance: the first folder in which paths differ, if any."""
    paths = [one.split("/") for one in ids]
    folders = [path[:-1] for path in paths] or [[]]
    ends = zip(min(folders), max(folders), strict=False)
    depth = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], ends))) + 1
    numbers: dict[tuple[str, ...], int] = {}
    groups = [numbers.setdefault(tuple(path[:depth]), len(numbers)) for path in paths]
    return groups if len(numbers) < len(ids) else None


def fingerprint_of(documents: Iterable[Document]) -> str:
    """Return the sha256 over id, split, length and text of documents in the order of their ids."""
    total = hashlib.sha256()
    for document in documents:
        name = _utf8(document.id)
        # lengths first, so that no two different corpora give the same stream of bytes
        total.update(f"{len(name)} {document.split} {len(document.text)}\n".encode())
        total.update(name)
        total.update(document.text)
    return total.hexdigest()


def _utf8(name: str) -> bytes:
    # file names that are no valid text reach Python as lone surrogates
    return name.encode("utf-8", "surrogatepass")


def articles(lines: Iterable[str]) -> list[str]:
    """Join WikiText's rows to articles; lines before the first title make one of their own."""
    rows = [row.removesuffix("\n") + "\n" for row in lines]  # blank rows come with or without their line end
    return _joined(rows, _titles(rows))


def sections(text: str, *, markdown: bool = False) -> tuple[list[str], str]:
    """Cut the text of one file, and say how: at the highest headings that are enough, else in chunks."""
    rows = re.findall(r"[^\n]*\n|[^\n]+", text)
    if len(starts := _titles(rows)) >= LEAST_SECTIONS:
        return _joined(rows, starts), "cut at ' = Title = ' lines"
    levels = _heading_levels(rows) if markdown else {}  # elsewhere a `#` is a comment
    for level in sorted(set(levels.values())):
        starts = []
        for row in (row for row, found in levels.items() if found <= level):
            # a heading right after another one ("# Part", "## Chapter") opens no document of its own
            if not starts or any(line.strip() for line in rows[starts[-1] + 1 : row]):
                starts.append(row)
        if len(starts) >= LEAST_SECTIONS:
            return _joined(rows, starts), f"cut at its headings ({'#' * level})"
    return _chunks(text), "cut in chunks: data.separator sets where"


def _heading_levels(rows: Sequence[str]) -> dict[int, int]:
    """Return the level of each row that is a Markdown heading; in fenced code a `#` is a comment."""
    levels, fence = {}, None
    for i, row in enumerate(rows):
        if mark := FENCE.match(row):
            fence = mark[1] if fence is None else None if fence == mark[1] else fence
        elif fence is None and (heading := HEADING.match(row)):
            levels[i] = len(heading[1])
    return levels


def _titles(rows: Sequence[str]) -> list[int]:
    """Return the rows that are titles between blank lines: a few table rows look like titles and are not."""

    def blank(i: int) -> bool:
        return not 0 <= i < len(rows) or not rows[i].strip()

    return [i for i, row in enumerate(rows) if TITLE.fullmatch(row) and blank(i - 1) and blank(i + 1)]


def _joined(rows: Sequence[str], starts: Sequence[int]) -> list[str]:
    edges = [0, *(i for i in starts if i > 0), len(rows)]
    pieces = ["".join(rows[a:b]) for a, b in itertools.pairwise(edges)]
    return [piece for piece in pieces if piece.strip()]


def _chunks(text: str) -> list[str]:
    """Cut into pieces of about equal length, after a blank line where there is one, else after a line."""
    size, start, pieces = max(LEAST_CHUNK, -(-len(text) // CHUNKS)), 0, []
    while len(text) - start > 1.5 * size:
        least, most = start + size, start + size + size // 2
        found = (text.find(mark, least, most) + len(mark) for mark in ("\n\n", "\n", " "))
        end = next((end for end in found if end > least), least)
        pieces.append(text[start:end])
        start = end
    return [piece for piece in (*pieces, text[start:]) if piece.strip()]
