"""The rules of the tables, for --explain: every term with its meaning, in which the thresholds are."""

from __future__ import annotations

import textwrap

from posenc.report.parts import cell_columns, row_columns
from posenc.report.parts.base import Term
from posenc.report.protocol_words import protocol_meanings

WIDTH = 80
INDENT = 10  # columns of the term before its meaning
LENGTHS: Term = ("T", "training length; 8x is a context of 8T, its loss on the same targets")
BEYOND: Term = ("beyond=", "what an encoding does past T, where it must choose")


def terms_of_tables() -> list[Term]:
    """Return every term of the tables with its meaning."""
    terms = [LENGTHS]
    # The terms stand at their columns (parts/), so that a new column cannot be without its meaning.
    for cell_column in cell_columns():
        terms += cell_column.terms
    for row_column in row_columns():
        terms += row_column.terms
    terms.append(BEYOND)
    return terms


def rules_of_tables() -> str:
    """Return the text of --explain, 80 columns wide."""
    lines = [_term_lines(term, meaning, INDENT) for term, meaning in terms_of_tables()]
    protocols = protocol_meanings()
    longest = max(len(name) for name, _ in protocols)
    lines.append("\nprotocols (--protocol)")
    lines += [_term_lines(name, meaning, longest + 2) for name, meaning in protocols]
    return "\n".join(lines) + "\n"


def _term_lines(term: str, meaning: str, indent: int) -> str:
    """Return a term and its meaning, which begins in the same column for all short terms."""
    # A long term takes the place that it needs, and the lines below it stay in the common column.
    start = term.ljust(indent) if len(term) < indent else f"{term}   "
    return textwrap.fill(meaning, WIDTH, initial_indent=start, subsequent_indent=" " * indent)
