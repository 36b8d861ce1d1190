"""The rules of the tables, for --explain: every term with its meaning, and the thresholds in force."""

from __future__ import annotations

import textwrap

from posenc.report.columns import CELL_COLUMNS, ROW_COLUMNS, Term
from posenc.report.protocol_words import protocol_meanings
from posenc.results.beside.dispersion import FAR_SHARE, LESS_SINK, LESS_VARIANCE, SINK_WEIGHT, SPREAD_SHARE
from posenc.results.beside.exact import LEARNED
from posenc.results.beside.recall import KEPT, LEVEL, SAME_RECALL
from posenc.results.records import BREAK
from posenc.results.statistics.verdicts import COLLAPSED, REFERENCE, SAME

WIDTH = 80
INDENT = 10  # columns of the term before its meaning
# Every number that the text of a term names in braces.
THRESHOLDS = {
    "same": SAME,
    "same_recall": SAME_RECALL,
    "collapsed": COLLAPSED,
    "reference": REFERENCE,
    "break_at": BREAK,
    "level": LEVEL,
    "learned": LEARNED,
    "kept": KEPT,
    "far_share": FAR_SHARE,
    "spread_share": SPREAD_SHARE,
    "less_variance": LESS_VARIANCE,
    "sink_weight": SINK_WEIGHT,
    "less_sink": 1 - LESS_SINK,  # LESS_SINK is what remains of the weight; the text says how much is lost
}
LENGTHS: Term = ("T", "training length; 8x is a context of 8T, its loss on the same targets")
BEYOND: Term = ("beyond=", "what an encoding does past T, where it must choose")


def terms_of_tables() -> list[Term]:
    """Return every term of the tables with its meaning."""
    terms = [LENGTHS]
    for cell_column in CELL_COLUMNS:
        terms += cell_column.terms
    for row_column in ROW_COLUMNS:
        terms += row_column.terms
    terms.append(BEYOND)
    return [(term, meaning.format(**THRESHOLDS)) for term, meaning in terms]


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
    start = term.ljust(indent) if len(term) < indent else f"{term}   "
    return textwrap.fill(meaning, WIDTH, initial_indent=start, subsequent_indent=" " * indent)
