"""Cut one text into documents: at WikiText's titles, at Markdown headings, or in chunks."""

from __future__ import annotations

import array
import bisect
import itertools
import re
from collections.abc import Iterable, Sequence

# ` = Title = ` begins an article of WikiText. A section in it has two or more `=` on each side.
TITLE = re.compile(r" = [^=\n]+ = ?\n?")
HEADING = re.compile(r"(#{1,6}) \S")
# The signs of a fence around code, and what stands behind them, as CommonMark has it. Behind backticks there
# are no further ones: ```that``` is code within a line.
FENCE = re.compile(r" {0,3}(`{3,}(?![^\n]*`)|~{3,})([^\n]*)")
# of Markdown: YAML between lines of `---`, TOML between lines of `+++`
FRONT_MATTER = re.compile(rb"\A(---|\+\+\+)[ \t]*\r?\n.*?^\1[ \t]*\r?(\n|\Z)", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"[^\n]*\n|[^\n]+")
LEAST_SECTIONS = 30  # with fewer, a split may be empty, or have too few documents for an interval
CHUNKS = 200  # most pieces of a text without headings: a book of 1 MB has 40 test documents
LEAST_CHUNK = 4096  # characters


def without_front_matter(text: bytes) -> bytes:
    """Return Markdown without the block of settings at its top, if it has one."""
    return FRONT_MATTER.sub(b"", text, count=1)


def articles(lines: Iterable[str]) -> list[str]:
    """Join WikiText's rows to articles. Rows before the first title make an article of their own."""
    # a blank row may lack its line end
    rows = [line.removesuffix("\n") + "\n" for line in lines]
    return _with_text(_joined(rows, _titles(rows)))


def sections(text: str, *, markdown: bool = False) -> tuple[list[str], str]:
    """Cut the text of one file. Return the sections, and a note on how it was cut.

    It is cut at the highest level of headings that gives enough sections, or else into chunks. Line ends of
    Windows stay as they are, and the text is cut where it would be with others.
    """
    pieces, how_cut = _cut(text.replace("\r\n", "\n"), markdown=markdown)
    if "\r\n" in text:
        pieces = _with_line_ends_of(text, pieces)
    return _with_text(pieces), how_cut


def _with_line_ends_of(text: str, pieces: Sequence[str]) -> list[str]:
    """Return the pieces with the line ends that they have in the text. Together they are the whole text."""
    # The places in the pieces at which a carriage return was taken out. Each is counted, since a text may mix
    # its line ends. An array takes a quarter of the memory of a list.
    matches = enumerate(re.finditer("\r\n", text))
    taken_out = array.array("q", (match.start() - number for number, match in matches))
    restored: list[str] = []
    start = 0
    end_of_piece = 0
    for piece in pieces:
        end_of_piece += len(piece)
        end = end_of_piece + bisect.bisect_left(taken_out, end_of_piece)
        restored.append(text[start:end])
        start = end
    return restored


def _cut(text: str, *, markdown: bool) -> tuple[list[str], str]:
    """Cut a text with line ends of `\\n`. Return pieces that add up to it, and a note on how it was cut."""
    rows = ROW.findall(text)
    # Before Markdown, since a title between single signs is no heading there.
    titles = _titles(rows)
    if len(titles) >= LEAST_SECTIONS:
        return _joined(rows, titles), "cut at ' = Title = ' lines"
    levels = _heading_levels(rows) if markdown else {}  # in other text a `#` may begin a comment
    for level in sorted(set(levels.values())):
        starts = _section_starts(rows, levels, level)
        if len(starts) >= LEAST_SECTIONS:
            return _joined(rows, starts), f"cut at its headings ({'#' * level})"
    return _chunks(text), "cut in chunks: data.separator sets where"


def _titles(rows: Sequence[str]) -> list[int]:
    """Return the numbers of rows that are titles. Blank rows around tell them from rows of a table."""

    def is_blank(i: int) -> bool:
        return not 0 <= i < len(rows) or not rows[i].strip()

    titles: list[int] = []
    for i, row in enumerate(rows):
        if TITLE.fullmatch(row) and is_blank(i - 1) and is_blank(i + 1):
            titles.append(i)
    return titles


def _heading_levels(rows: Sequence[str]) -> dict[int, int]:
    """Return the level of each Markdown heading by the number of its row. Fenced code has no headings."""
    levels: dict[int, int] = {}
    open_fence: str | None = None
    for i, row in enumerate(rows):
        fence = FENCE.match(row)
        heading = HEADING.match(row)
        # A line of `#` in a program's text is a comment, and would cut the program in two.
        if open_fence is None:
            if fence:
                open_fence = fence[1]
            elif heading:
                levels[i] = len(heading[1])
        elif fence and _closes(fence, open_fence):
            open_fence = None
    return levels


def _closes(fence: re.Match[str], open_fence: str) -> bool:
    """Tell whether a fence ends the code that an open one began: of its sign, as long, nothing behind it."""
    # So code that shows Markdown with ``` stands between fences of ````.
    return fence[1].startswith(open_fence) and not fence[2].strip()


def _section_starts(rows: Sequence[str], levels: dict[int, int], level: int) -> list[int]:
    """Return the numbers of rows at which a section begins: headings of this level and of higher ones."""
    starts: list[int] = []
    for row, row_level in levels.items():
        if row_level > level:
            continue
        # a heading right after another one ("# Part", then "## Chapter") begins no section of its own
        follows_heading = starts and not any(line.strip() for line in rows[starts[-1] + 1 : row])
        if not follows_heading:
            starts.append(row)
    return starts


def _joined(rows: Sequence[str], starts: Sequence[int]) -> list[str]:
    """Join the rows of each section. Rows before the first start make a section of their own."""
    edges = [0, *(start for start in starts if start > 0), len(rows)]
    return ["".join(rows[start:end]) for start, end in itertools.pairwise(edges)]


def _chunks(text: str) -> list[str]:
    """Cut a text into pieces of about equal length, after blank lines if possible."""
    chunk_length = max(LEAST_CHUNK, -(-len(text) // CHUNKS))  # rounded up
    pieces = []
    start = 0
    # What is left is at most one and a half chunks, so that the last piece is no splinter.
    while len(text) - start > 1.5 * chunk_length:
        end = _chunk_end(text, start + chunk_length, start + chunk_length + chunk_length // 2)
        pieces.append(text[start:end])
        start = end
    pieces.append(text[start:])
    return pieces


def _with_text(pieces: Iterable[str]) -> list[str]:
    """Return the pieces that are not blank."""
    return [piece for piece in pieces if piece.strip()]


def _chunk_end(text: str, earliest: int, latest: int) -> int:
    """Return the end of the first blank line in a range, else of the first line, else of the first word."""
    # Text without any blank is cut anywhere, even in a word.
    for mark in ("\n\n", "\n", " "):
        index = text.find(mark, earliest, latest)  # -1 if there is none
        end = index + len(mark)
        if end > earliest:
            return end
    return earliest
