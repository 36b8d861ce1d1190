"""A table of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ALIGNMENTS = {"left": "---", "right": "---:"}


@dataclass
class MarkdownTable:
    """Heads, rows of text, and a sentence that may follow; numbers are aligned to the right."""

    heads: Sequence[str]
    left: Sequence[int] = (0,)  # columns of words
    rows: list[Sequence[str]] = field(default_factory=list)
    sentence: str = ""

    def add(self, *cells: str) -> None:
        """Add a row at the bottom."""
        self.rows.append(cells)

    def text(self) -> str:
        """Return the Markdown, with a line break at its end."""
        alignments = [
            ALIGNMENTS["left"] if column in self.left else ALIGNMENTS["right"]
            for column in range(len(self.heads))
        ]
        lines = [_line(cells) for cells in (self.heads, alignments, *self.rows)]
        if self.sentence:
            lines += ["", self.sentence]
        return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    # a column without a head, and a cell without text, take one blank
    parts = [f" {cell} " if cell else " " for cell in cells]
    return f"|{'|'.join(parts)}|"
