"""A comparison in plain words: what happens at the longest window, who is lowest, of how much data."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.core.errors import visible
from posenc.report.words import INDEPENDENT, label, length
from posenc.results.cells import Cell
from posenc.results.comparison import Column, Comparison, Row
from posenc.results.ranking import BETTER, COLLAPSED_WORD, SAME_WORD, WORSE, short_verdict
from posenc.results.schema import printed, printed_change

MOST_NAMED = 5  # rows; of more their number is told
UNITS = {"nats": "nats", "bpb": "bits per byte", "ppl": "perplexity"}
VERBS = {
    BETTER: ("gains", "gain"),
    SAME_WORD: ("keeps its loss", "keep their loss"),
    WORSE: ("loses", "lose"),
    COLLAPSED_WORD: ("collapses", "collapse"),
}


def summary_sentence(comparison: Comparison) -> str:
    """One or two sentences; empty where there is nothing to say. Plain text: escape it for the format."""
    columns = [i for i, column in enumerate(comparison.columns) if column.shown]
    if not columns or not comparison.rows:
        return ""
    if any(row.curve for row in comparison.rows):
        parts = [_breaks(comparison.rows)]
    elif comparison.header["baseline"] is not None:
        parts = [_against(comparison, columns[-1])]
    else:
        parts = [_changes(comparison, columns[-1])]
        parts += [_lowest(comparison, columns)]
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in [*parts, _counts(comparison)] if part)


def _changes(comparison: Comparison, at: int) -> str:
    """`At 8x alibi keeps its loss; rope and nope collapse (+1.33 to +2.47 nats)`; of one length nothing."""
    column = comparison.columns[at]
    if column.multiple <= 1:
        return ""
    metric = comparison.header["metric"]
    clauses = []
    cells = [(row, row.cells[at]) for row in comparison.rows]
    cells.sort(key=lambda one: one[1].change or 0.0)
    for word, verbs in VERBS.items():
        found = [(row, cell) for row, cell in cells if cell.verdict == word]
        if found:
            size = "" if word == SAME_WORD else _sizes([cell for _, cell in found], metric)
            clauses.append(f"{_names([row for row, _ in found])} {verbs[len(found) > 1]}{size}")
    unclear = [
        (row, cell) for row, cell in cells if cell.verdict and short_verdict(cell.verdict) not in VERBS
    ]
    if unclear:
        sizes = _sizes([cell for _, cell in unclear], metric)
        clauses.append(f"unclear for {_names([row for row, _ in unclear])}{sizes}")
    partly = [row for row, cell in cells if cell.mean is not None and cell.verdict is None]
    if partly:
        clauses.append(f"no verdict for {_names(partly)}")
    missing = [row for row, cell in cells if cell.mean is None]
    if missing:
        clauses.append(f"no number for {_names(missing)}")
    return f"at {length(column.multiple)} {'; '.join(clauses)}" if clauses else ""


def _against(comparison: Comparison, at: int) -> str:
    column, metric = comparison.columns[at], comparison.header["metric"]
    clauses = []
    for word in ("lower", "tie", "unclear", "higher"):
        found = [(row, row.cells[at].against) for row in comparison.rows]
        some = [(row, one) for row, one in found if one is not None and one.word == word]
        if some:
            values = [one.difference for _, one in some]
            is_word = {"tie": "a tie with it", "unclear": "not told from it"}.get(word, word)
            verb = "is" if len(some) == 1 else "are"
            clauses.append(f"{_names([row for row, _ in some])} {verb} {is_word} ({_range(values, metric)})")
    name, unit = visible(comparison.header["baseline"]), UNITS[metric]
    rest = [row for row in comparison.rows if label(row) != name]
    rest = [row for row in rest if row.cells[at].against is None]
    if rest:
        clauses.append(f"not held against it: {_names(rest)}")
    return f"against {name} at {length(column.multiple)}, in {unit}: {'; '.join(clauses)}"


def _lowest(comparison: Comparison, columns: Sequence[int]) -> str:
    """Who has the lowest loss at T and at the longest window, and who cannot be told from it."""
    clauses = []
    for i in dict.fromkeys([*(i for i in columns if comparison.columns[i].multiple == 1), columns[-1]]):
        lowest = [row for row in comparison.rows if row.cells[i].mark == "lowest"]
        near = [row for row in comparison.rows if row.cells[i].mark in ("tie", "unclear")]
        if lowest:
            behind = f" (not told from it: {_names(near)})" if near else ""
            clauses.append(f"at {_place(comparison.columns[i])} {_names(lowest)}{behind}")
    return f"lowest {', '.join(clauses)}" if clauses else ""


def _place(column: Column) -> str:
    return "T" if column.multiple == 1 else length(column.multiple)


def _breaks(rows: Sequence[Row]) -> str:
    broken = [row for row in rows if row.curve and any(end is not None for end in row.curve.breaks_at)]
    rest = [row for row in rows if row.curve and row not in broken]
    whole = [row for row in rest if row.curve and all(row.curve.holds)]
    unclear = [row for row in rest if row not in whole]
    clauses = []
    for row in broken[:MOST_NAMED]:
        assert row.curve is not None
        first = min(end for end in row.curve.breaks_at if end is not None)
        clauses.append(f"{_names([row])} breaks at {first / row.curve.train_length:.3g}x")
    if len(broken) > MOST_NAMED:
        clauses = [f"{len(broken)} rows break"]
    if whole:
        clauses.append(f"{_names(whole)} {'does' if len(whole) == 1 else 'do'} not break")
    if unclear:
        clauses.append(f"unclear for {_names(unclear)}")
    return f"past T {'; '.join(clauses)}" if clauses else ""


def _counts(comparison: Comparison) -> str:
    cells = [cell for row in comparison.rows for cell in row.cells]
    seeds = sorted({cell.seeds for cell in cells if cell.seeds})
    if comparison.header["baseline"] is not None:  # paired: those that both rows have
        seeds = sorted({len(cell.against.seeds) for cell in cells if cell.against is not None})
    documents, noun = (
        comparison.header["documents"],
        INDEPENDENT.get(comparison.header["protocol"], "document"),
    )
    parts = []
    if seeds:
        number = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
        parts.append(f"{number} seed" + ("" if seeds == [1] else "s"))
    if documents is not None:
        low, high = documents
        number = f"{low}" if low == high else f"{low} to {high}"
        parts.append(f"{number} {noun}" + ("" if high == 1 else "s"))
    return ", ".join(parts)


def _names(rows: Sequence[Row]) -> str:
    if len(rows) > MOST_NAMED:
        return f"{len(rows)} rows"
    names = [label(row).replace(f" (beyond: {visible(row.beyond)})", "") + _weak(row) for row in rows]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _weak(row: Row) -> str:
    """A model that learned next to nothing loses nothing either."""
    return " (undertrained)" if any(note.startswith("undertrained:") for note in row.notes) else ""


def _sizes(cells: Sequence[Cell], metric: str) -> str:
    """` (+1.3 to +2.5 nats)`; nothing where a change overflows."""
    found = [cell.change for cell in cells if cell.change is not None]
    return f" ({_range(found, metric)} {UNITS[metric]})" if found else ""


def _range(values: Sequence[float], metric: str) -> str:
    low, high = min(values), max(values)
    if printed(low, metric) == printed(high, metric):
        return printed_change(low, metric)
    return f"{printed_change(low, metric)} to {printed_change(high, metric)}"
