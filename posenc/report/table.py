"""Turn comparisons into reports: facts, the answer, tables of text, notes. The writers know only these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from posenc.core.errors import plural
from posenc.report.captions import (
    answer,
    breaks_text,
    curve_of,
    facts_of,
    full_notes,
    horizon_text,
    label,
    length,
    percent,
    recall_line,
    sample_line,
    token_of,
    unit_of,
)
from posenc.results.comparison import Column, Comparison, Row, protocols_of
from posenc.results.recall_headroom import RecallCell, Recovered
from posenc.results.rows import Cell
from posenc.results.schema import HEADLINE, RECALL, printed, printed_change
from posenc.results.statistics import Versus, short_verdict

BEST, TIED = "*", "~"
MARKS = {"best": BEST, "tied": TIED}
LONGEST_REASON = 12  # characters of why a cell has no number


@dataclass
class CellText:
    """The text of a cell; `mark` is `*`, `~` or empty."""

    text: str = ""
    mark: str = ""


@dataclass
class Table:
    """Rows of cells. The first column names the rows; a `left` column is words, aligned to the left."""

    heads: list[str]
    rows: list[list[CellText]]
    title: str = ""
    left: tuple[int, ...] = ()  # beside the first
    drop: list[int] = field(default_factory=list)  # columns to leave out first where the width is too small
    keys: int = 1  # columns that stay beside the others where these go below each other

    def add(self, head: str, cells: Sequence[CellText | str], *, words: bool = False) -> int:
        """Add a column, of words or of numbers; return its place."""
        self.left += (len(self.heads),) if words else ()
        self.heads.append(head)
        for row, cell in zip(self.rows, cells, strict=True):
            row.append(CellText(cell) if isinstance(cell, str) else cell)
        return len(self.heads) - 1


@dataclass
class Report:
    """What a reader gets, as plain text, which the writers escape."""

    facts: list[str]
    answer: str
    tables: list[Table]
    notes: list[str]
    tail: list[str] = field(default_factory=list)  # a path, a command: never wrapped
    gap: bool = False  # an empty line between the table and the notes
    name: str = ""  # for a paper's label


def of_rows(comparison: Comparison, title: str = "") -> Table:
    """Return a table that has only the names of the rows."""
    return Table(["encoding"], [[CellText(label(row))] for row in comparison.rows], title)


def shown_columns(comparison: Comparison) -> list[int]:
    """Return the places of the columns that tables show."""
    return [i for i, column in enumerate(comparison.columns) if column.shown]


# --- one screen


def report_of(comparison: Comparison, every: bool = False, spread: bool = False) -> Report:
    """Return the short report: a line a row, or a line a quantity for a single row.

    `every`: lengths below T are shown too; `spread`: each number with its ±, a line a row in any case.
    """
    h, rows, recall_only = comparison.header, comparison.rows, _recall_only(comparison)
    if len(rows) == 1 and comparison.columns and not (h.baseline or recall_only or spread):
        return _run_report(comparison)
    cells, also = [cell for row in rows for cell in row.cells], comparison.recall is not None
    notes = [] if recall_only else [_unit_note(comparison), *_recovered_note(rows, spread)]
    weak = any(row.recall and row.recall.learned is False for row in rows)
    found = "recall@: % of planted values found within T, then the farthest" + "; (did not learn)" * weak
    notes += [found + ", each ± half its 95% CI" * spread] * also
    for policy in dict.fromkeys(row.beyond for row in rows if row.beyond and also):  # no room in the table
        notes.append(f"beyond={policy} of {' and '.join(label(row) for row in rows if row.beyond == policy)}")
    ranked = any(cell.versus_best for cell in cells)
    of_documents = any(cell.change_ci95 and cell.change_spread is None for cell in cells)
    meant = ["standard deviation over seeds"] * any(cell.spread is not None for cell in cells)
    meant += ["half the 95% CI over documents"] * of_documents
    meant = ["half the 95% CI"] if h.baseline else meant
    notes += [f"±: {', with one seed '.join(meant)}"] * (spread and not recall_only and bool(meant))
    if spread:
        kind = "highest recall" if recall_only else "lowest loss, highest recall" if also else "lowest loss"
        notes += [f"bold: {kind} of the column, tilde: not distinguishable from it"] * ranked
    elif recall_only:
        notes.append("more: --full, --explain, --plot FILE (the grid of windows and distances)")
    else:
        best = f"{BEST} {'best' if also else 'lowest loss'} of the column, {TIED} tied. M" if ranked else "m"
        notes.append(f"{best}ore: --full, --explain, --protocol all")
    return Report(facts_of(comparison), answer(comparison), [rows_table(comparison, every, spread)], notes)


def paper_report_of(comparison: Comparison, every: bool = False) -> Report:
    """Return the table of a paper, each number with its ±; its facts are the caption."""
    report, h = report_of(comparison, every, spread=True), comparison.header
    words = "-".join(["posenc", h.protocol, h.metric, *map(str, h.group.values())])
    name = "tab:" + re.sub(r"[^A-Za-z0-9-]+", "-", words)
    return Report([*report.facts, *report.notes], "", report.tables, [], name=name)


def _run_report(comparison: Comparison) -> Report:
    """Return a column a length: loss, change, its interval, the verdict."""
    (row,), h, shown = comparison.rows, comparison.header, shown_columns(comparison)
    columns = [comparison.columns[i] for i in shown]
    numbers = _numbers(comparison, [(row, i) for i in shown])
    rows = [
        [CellText(name), *map(CellText, texts), CellText(unit_of(h) if name == "loss" else "")]
        for name, texts in numbers.items()
    ]
    heads = [
        (str(column.window) if column.window else length(column.multiple)) + " = T" * (column.multiple == 1)
        for column in columns
    ]
    table = Table(["position" if row.curve else "context", *heads, ""], rows, left=(len(heads) + 1,))
    table.drop = _droppable(columns)
    others = [name for name in protocols_of(comparison.runs) if name not in (HEADLINE, RECALL)]
    also = f"also measured: {', '.join(others)} (posenc compare --protocol all)"
    notes = [recall_line(comparison), sample_line(comparison), *_recovered_note([row])]
    notes.append(also if others and h.protocol == HEADLINE else "")
    said = answer(comparison, curve_of(comparison))
    return Report(facts_of(comparison), said, [table], list(filter(None, notes)), gap=True)


def rows_table(comparison: Comparison, every: bool = False, spread: bool = False) -> Table:
    """Return a line a row: the loss at T, the change elsewhere, the verdict at the longest length.

    With a baseline the differences to it; with `spread` each number with its ±; recall behind the losses.
    """
    rows, shown = comparison.rows, shown_columns(comparison)
    if _recall_only(comparison):
        return recall_table(comparison, spread)
    if not every and any(comparison.columns[i].multiple > 1 for i in shown):
        shown = [i for i in shown if comparison.columns[i].multiple >= 1]
    columns, table = [comparison.columns[i] for i in shown], of_rows(comparison)
    for i in shown:
        table.add(_head(comparison.columns[i]), [_cell_text(comparison, row, i, spread) for row in rows])
    table.drop = _droppable(columns)
    if any(row.recovered for row in rows):
        table.add("recovered", [recovered_text(row.recovered, spread) for row in rows])
    head, words = "reason", ["; ".join(row.notes) for row in rows]
    if shown:
        place = length(columns[-1].multiple)
        head = f"at {place}" if comparison.header.baseline is not None else f"verdict at {place}"
        head = "breaks at" if any(row.curve for row in rows) else head
        words = _last_texts(comparison, shown[-1])
    if comparison.recall is not None and head.startswith("verdict"):
        head = "verdict"  # as wide as its words, so that all fit into 80 columns
    if any(words):
        table.add(head, words, words=True)
    if comparison.recall is not None:
        more = recall_table(comparison, spread)
        places = [table.add(one, [row[i] for row in more.rows]) for i, one in enumerate(more.heads) if i]
        table.drop = [*table.drop[:-1], *places[-2:0:-1], *table.drop[-1:]]
    return table


def recall_table(comparison: Comparison, spread: bool = False, full: bool = False) -> Table:
    """Return a line a row: recall within T, and in each longer window at its farthest distance.

    In per cent; with `spread` ± half the 95% interval, with `full` its ends and every rank.
    """
    assert comparison.recall is not None
    rows, table = comparison.rows, of_rows(comparison, "recall, % with 95% CI" if full else "")
    multiples = comparison.recall.multiples
    for i, head in enumerate(["recall@T", *(f"@{length(one)}" for one in multiples)]):
        cells = [[row.recall.within, *row.recall.beyond][i] if row.recall else None for row in rows]
        learned = [row.recall is not None and row.recall.learned is not False for row in rows]
        texts = [_recall_text(cell, own, spread, full) for cell, own in zip(cells, learned, strict=True)]
        ranked = full or i == len(multiples)  # where there is no room for all ranks, those of the longest
        marks = [MARKS.get(cell.rank or "", "") if cell and ranked else "" for cell in cells]
        table.add(head, list(map(CellText, texts, marks)))
    return table


def _recall_text(cell: RecallCell | None, learned: bool, spread: bool, full: bool) -> str:
    if cell is None:
        return "-"
    text, (low, high) = percent(cell).rstrip("%"), cell.ci95
    if full:
        return f"{text} [{100 * low:.0f}, {100 * high:.0f}]"
    text += f"±{50 * (high - low):.0f}" if spread else ""
    return text if learned else f"({text})"


def _recall_only(comparison: Comparison) -> bool:
    return comparison.header.protocol == RECALL and comparison.recall is not None


def _cell_text(comparison: Comparison, row: Row, i: int, spread: bool) -> CellText:
    baseline, metric = comparison.header.baseline, comparison.header.metric
    cell, half = row.cells[i], ""
    if baseline is not None and (versus := cell.versus_baseline) is not None:
        text, half = printed_change(versus.difference, metric), _around(metric, None, versus.ci95)
    elif cell.mean is None or baseline is not None or comparison.columns[i].multiple == 1:
        text, half = _loss(cell, metric), _around(metric, cell.spread)
    elif cell.change is None:
        text = f"({_loss(cell, metric)})"
    else:
        text = printed_change(cell.change, metric)
        half = _around(metric, cell.change_spread, cell.change_ci95)
    mark = MARKS.get(cell.versus_best.word, "") if cell.versus_best else ""
    return CellText(text + half if spread else text, mark)


def _last_texts(comparison: Comparison, i: int) -> list[str]:
    """Return the verdicts at the longest length, and what is particular: policy, seeds, failures."""
    rows, baseline = comparison.rows, comparison.header.baseline
    counts = [max((cell.seeds for cell in row.cells), default=0) for row in rows]
    usual = max(set(counts), key=counts.count)
    one, all_weak = len(rows) == 1, all(row.undertrained for row in rows)  # the answer says so once
    found = []
    for row in rows:
        cell = row.cells[i]
        if row.curve is not None:
            word = breaks_text(row.curve)
        elif baseline is not None:
            versus = cell.versus_baseline
            word = versus.word if versus else "baseline" if label(row) == baseline else ""
        else:
            word = "undertrained" if row.undertrained else short_verdict(cell.verdict or "")
            word = "" if all_weak else word
        parts = [word, f"beyond={row.beyond}" if row.beyond and (one or comparison.recall is None) else ""]
        if cell.mean is not None and cell.note:
            parts.append(cell.note)
        elif cell.seeds not in (0, usual):
            parts.append(plural(cell.seeds, "seed"))
        found.append(", ".join(filter(None, parts)))
    return found


def recovered_text(found: Recovered | None, spread: bool = False) -> str:
    """Return `12%`, with `spread` `12% ±3`; else `<-100%` below that; nothing where there is no room."""
    if found is None or found.share is None:
        return ""
    half = f" ±{50 * (found.ci95[1] - found.ci95[0]):.0f}" if spread and found.ci95 else ""
    return "<-100%" if found.share < -1 and not spread else f"{100 * found.share:z.0f}%{half}"


def _recovered_note(rows: Sequence[Row], spread: bool = False) -> list[str]:
    """Return what the recovered share is of, where a row has one; of a single row the share itself."""
    found = [row.recovered for row in rows if row.recovered]
    places = " or ".join(dict.fromkeys(length(one.multiple) for one in found))
    share = f"{found[0].note or recovered_text(found[0], spread=True)} " if len(rows) == 1 and found else ""
    text = f"recovered: {share}of what training at {places} gains (0% is cropping); blank: no room"
    return [text + ", ± half its 95% CI" * spread] * bool(found)


def _unit_note(comparison: Comparison) -> str:
    h, unit = comparison.header, unit_of(comparison.header)
    if h.baseline is not None:
        return f"{unit}: difference to {h.baseline} at the same length; of itself the loss"
    if any(row.curve for row in comparison.rows):
        return f"loss in {unit} at position T, then the rise over the mean from T/2 to T"
    chance = re.search(r"\(chance.*", h.unit)
    what = "perplexity" if h.metric == "ppl" else f"loss in {unit}" + (f" {chance[0]}" if chance else "")
    return f"{what} at T, then the change when the same targets see more text"


def _droppable(columns: Sequence[Column]) -> list[int]:
    """Return the columns to leave out, first to last: those below T, then the longest but one, and so on."""
    below = [i for i, one in enumerate(columns, 1) if one.multiple < 1]
    past = [i for i, one in enumerate(columns[:-1], 1) if one.multiple > 1]
    return below + past[::-1]


# --- in full


def full_report_of(comparison: Comparison) -> Report:
    """Return everything: each number of a row and length with its interval, recall, what is per row."""
    lines = [(row, i) for row in comparison.rows for i in shown_columns(comparison)]
    heads = [_head(comparison.columns[i]) for _, i in lines]
    table = Table(
        ["encoding"],
        [[CellText(label(row))] for row, _ in lines],
        f"by length, in {unit_of(comparison.header)}",
        keys=2,
    )
    table.add("context", heads)
    for name, texts in _numbers(comparison, lines).items():
        table.add(name, texts, words=name == "verdict")
    tables = [table] if len(table.heads) > 2 and comparison.header.protocol != RECALL else []
    if comparison.recall is not None:
        tables.append(recall_table(comparison, full=True))
    tables.append(_side_table(comparison))
    said = answer(comparison, curve_of(comparison))
    return Report(facts_of(comparison), said, tables, full_notes(comparison), gap=True)


def _numbers(comparison: Comparison, lines: Sequence[tuple[Row, int]]) -> dict[str, list[str]]:
    """Return by their name the numbers of rows at the columns i, without those that none of them has."""
    metric, baseline = comparison.header.metric, comparison.header.baseline
    versus = f"minus {baseline}" if baseline else "above the best"
    change = "rise" if any(row.curve for row, _ in lines) else "change"
    found: dict[str, list[str]] = {}

    def add(name: str, text: str) -> None:
        found.setdefault(name, []).append(text)

    for row, cell in ((row, row.cells[i]) for row, i in lines):
        is_base = cell.multiple == 1 and row.extend is None and row.curve is None
        changed = "" if cell.change is None else printed_change(cell.change, metric)
        one = cell.versus_baseline if baseline else cell.versus_best
        add("loss", _loss(cell, metric))
        add("sd", _around(metric, cell.spread))
        add(change, "-" if is_base else changed)
        add("95% CI", _around(metric, None, cell.change_ci95))
        add(f"sd of {change}", "" if is_base else _around(metric, cell.change_spread))
        add("verdict", "" if row.undertrained else short_verdict(cell.verdict or ""))
        add(versus, _versus_text(one, metric))
    return {name: texts for name, texts in found.items() if any(text.strip("-") for text in texts)}


def _versus_text(versus: Versus | None, metric: str) -> str:
    if versus is None or versus.word == "best":
        return "-" if versus is None else "best"
    ends = ", ".join(printed_change(end, metric) for end in versus.ci95 or ())
    p = "" if versus.p is None else " p<0.001" if versus.p < 0.001 else f" p={versus.p:.3f}"
    method = "" if versus.method == "welch" else f" {versus.method}"
    tied = f" {TIED}" if versus.word == "tied" else ""
    return printed_change(versus.difference, metric) + (f" [{ends}]" if ends else "") + p + method + tied


def _side_table(comparison: Comparison) -> Table:
    """Return the seeds, headroom and recall horizon of each row."""
    rows, table = comparison.rows, of_rows(comparison, "per row")
    found = [row.recovered for row in rows]
    columns = {
        "seeds": [" ".join(map(str, row.seeds)) for row in rows],
        f"room, nats/{token_of(comparison.header)}": [
            printed_change(one.room, "nats") + _around("nats", None, one.room_ci95) if one else ""
            for one in found
        ],
        "recovered": [
            (one.note or recovered_text(one, spread=True)) + f" at {length(one.multiple)}" if one else ""
            for one in found
        ],
        "recall horizon": [horizon_text(row.recall) for row in rows],
    }
    for head, texts in columns.items():
        if any(texts):
            table.add(head, [text or "-" for text in texts])
    return table


# --- cells


def _head(column: Column) -> str:
    return length(column.multiple) + (" (T)" if column.multiple == 1 else "")


def cell_lines(cell: Cell, metric: str) -> list[str]:
    """Return loss, change and verdict of a cell, each ± its spread, or why there is no number."""
    if cell.mean is None:
        return [_loss(cell, metric)]
    lines = [_loss(cell, metric) + _around(metric, cell.spread)]
    if cell.change is not None and (cell.multiple != 1 or cell.change != 0):
        half = _around(metric, cell.change_spread, cell.change_ci95)
        lines.append(printed_change(cell.change, metric) + half)
    return lines + ([short_verdict(cell.verdict)] if cell.verdict else [])


def _loss(cell: Cell, metric: str) -> str:
    """Return the loss, or why there is none."""
    if cell.mean is not None:
        return printed(cell.mean, metric)
    return (cell.note or "-").partition(",")[0][:LONGEST_REASON]


def _around(metric: str, spread: float | None, interval: Sequence[float] | None = None) -> str:
    """Return ± the spread over seeds, else half the interval; nothing without either."""
    half = (interval[1] - interval[0]) / 2 if spread is None and interval else spread
    return "" if half is None else f"±{printed(half, metric)}"
