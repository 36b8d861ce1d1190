"""The rules of the tables, for --explain: every term with its meaning, and the margins in force."""

from __future__ import annotations

import textwrap

from posenc.report.columns import CELL_COLUMNS, ROW_COLUMNS, Term
from posenc.report.protocol_words import explanations
from posenc.results.dispersion import FAR_SHARE, LESS_SINK, LESS_VARIANCE, SINK_WEIGHT, SPREAD_SHARE
from posenc.results.exact import LEARNED
from posenc.results.recall import KEPT, LEVEL, SAME_RECALL
from posenc.results.records import BREAK
from posenc.results.statistics.verdicts import COLLAPSED, REFERENCE, SAME

WIDTH = 80
INDENT = 10  # columns of the term before its meaning
MARGINS = {
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
    "less_sink": 1 - LESS_SINK,
}
LENGTHS: Term = ("T", "training length; 8x is a context of 8T, its loss on the same targets")
BEYOND: Term = ("beyond=", "what an encoding does past T, where it must choose")


def terms_of_tables() -> list[Term]:
    """Return every term of the tables with its meaning."""
    terms = [LENGTHS]
    for cell_column in CELL_COLUMNS:
        terms += cell_column.explain
    for row_column in ROW_COLUMNS:
        terms += row_column.explain
    terms.append(BEYOND)
    return [(term, meaning.format(**MARGINS)) for term, meaning in terms]


def explain() -> str:
    """Return the rules of the tables, 80 columns wide."""
    lines = [_term_lines(term, meaning, INDENT) for term, meaning in terms_of_tables()]
    protocols = explanations()
    longest = max(len(name) for name, _ in protocols)
    lines.append("\nprotocols (--protocol)")
    lines += [_term_lines(name, meaning, longest + 2) for name, meaning in protocols]
    return "\n".join(lines) + "\n"


def _term_lines(term: str, meaning: str, indent: int) -> str:
    """Return a term and its meaning, which begins in the same column for all short terms."""
    start = term.ljust(indent) if len(term) < indent else f"{term}   "
    return textwrap.fill(meaning, WIDTH, initial_indent=start, subsequent_indent=" " * indent)
