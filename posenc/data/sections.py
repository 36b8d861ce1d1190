"""Cut one text into documents: at a separator, at headings, or in chunks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

# ` = Title = ` opens an article of WikiText; its sections have two or more signs on each side
TITLE = re.compile(r" = [^=\n]+ = ?\n?")
HEADING = re.compile(r"(#{1,6}) \S")
FENCE = re.compile(r" {0,3}(```|~~~)")
MARKDOWN = (".md", ".markdown", ".txt")  # elsewhere a `#` is a comment
LEAST_SECTIONS = 30  # with fewer a split may be empty, or hold too few documents for an interval
CHUNKS, LEAST_CHUNK = 200, 4096  # how many, and characters of each: 40 test documents of a book of 1 MB


def articles(lines: Iterable[str]) -> list[str]:
    """Join WikiText's rows (one line each, blank ones too) to articles.

    Lines before the first title make an article of their own.
    """
    rows = list(lines)
    # blank rows come with or without their line end
    whole = [row if row.endswith("\n") else row + "\n" for row in rows]
    return _joined(whole, _titles(rows))


def sections(name: str, text: str) -> tuple[list[str], str]:
    """Cut the text of one file, and say how: at its headings where there are enough, else in chunks.

    Of Markdown's levels the highest with enough headings is taken, those above it included.
    """
    rows = re.findall(r"[^\n]*\n|[^\n]+", text)
    if len(starts := _titles(rows)) >= LEAST_SECTIONS:
        return _joined(rows, starts), "cut at ' = Title = ' lines"
    levels = _heading_levels(rows) if name.lower().removesuffix(".gz").endswith(MARKDOWN) else {}
    for level in range(1, 7):
        starts = []
        for row in (row for row, found in levels.items() if found <= level):
            # a heading right after another one ("# Part", "## Chapter") opens no document of its own
            if not starts or any(line.strip() for line in rows[starts[-1] + 1 : row]):
                starts.append(row)
        if len(starts) >= LEAST_SECTIONS:
            return _joined(rows, starts), f"cut at its headings ({'#' * level})"
    return _chunks(text), f"cut in chunks: fewer than {LEAST_SECTIONS} headings, and no data.separator"


def _titles(rows: Sequence[str]) -> list[int]:
    """Return the rows that are titles between blank lines: a few table rows look like titles and are not."""

    def blank(i: int) -> bool:
        return not 0 <= i < len(rows) or not rows[i].strip()

    return [i for i, row in enumerate(rows) if TITLE.fullmatch(row) and blank(i - 1) and blank(i + 1)]


def _heading_levels(rows: Sequence[str]) -> dict[int, int]:
    """Return the level of each row that is a Markdown heading; in fenced code a `#` is a comment."""
    levels, fence = {}, None
    for i, row in enumerate(rows):
        if mark := FENCE.match(row):
            fence = mark[1] if fence is None else None if fence == mark[1] else fence
        elif fence is None and (heading := HEADING.match(row)):
            levels[i] = len(heading[1])
    return levels


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
