"""Turn comparisons into reports: facts, the answer, tables of text, notes. The writers know only these."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from posenc.report.captions import (
    PROTOCOLS,
    answer,
    breaks_text,
    curve_of,
    facts_of,
    full_notes,
    horizon_text,
    label,
    length,
    percent,
    plural,
    precisions_of,
    recall_line,
    sample_line,
    short_label,
    token_of,
    unit_of,
)
from posenc.results.cells import Cell
from posenc.results.comparison import Column, Comparison, Row, protocols_of
from posenc.results.headroom import Recovered
from posenc.results.ranking import Versus, short_verdict
from posenc.results.recall import PROTOCOL as RECALL
from posenc.results.recall import RecallCell
from posenc.results.schema import HEADLINE, printed, printed_change

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
    return Table(["encoding"], [[CellText(short_label(row))] for row in comparison.rows], title)


def shown_columns(comparison: Comparison) -> list[int]:
    """Return the places of the columns that tables show."""
    return [i for i, column in enumerate(comparison.columns) if column.shown]


# --- one screen


def report_of(comparison: Comparison, every: bool = False) -> Report:
    """Return the short report: a line a row, or a line a quantity for a single row.

    `every`: lengths below T are shown too.
    """
    h, rows, recall_only = comparison.header, comparison.rows, _recall_only(comparison)
    if len(rows) == 1 and comparison.columns and not h["baseline"] and not recall_only:
        return _run_report(comparison)
    notes = [] if recall_only else [_unit_note(comparison), *_recovered_note(rows)]
    notes += [] if comparison.recall is None else [_recall_note(comparison)]
    if recall_only:
        notes.append("more: --full, --explain, --plot FILE (the grid of windows and distances)")
    elif any(cell.versus_best for row in rows for cell in row.cells):
        best = "lowest loss" if comparison.recall is None else "best"
        notes.append(f"{BEST} {best} of the column, {TIED} tied. More: --full, --explain, --protocol all")
    else:
        notes.append("more: posenc compare --full, --explain, --protocol all")
    return Report(_facts(comparison), answer(comparison), [rows_table(comparison, every)], notes)


def _facts(comparison: Comparison) -> list[str]:
    return [*facts_of(comparison), *precisions_of(comparison)]


def _run_report(comparison: Comparison) -> Report:
    """Return a column a length: loss, change, its interval, the verdict."""
    (row,), h, metric = comparison.rows, comparison.header, comparison.header["metric"]
    shown = shown_columns(comparison)
    cells, columns = [row.cells[i] for i in shown], [comparison.columns[i] for i in shown]
    lines = {
        "loss": [_loss(cell, metric) for cell in cells],
        "rise" if row.curve else "change": [
            "-" if _is_base(row, cell) else _signed(cell.change, metric) for cell in cells
        ],
        "95% CI": [_around(metric, None, cell.change_ci95) for cell in cells],
        "sd of seeds": [_around(metric, cell.change_spread) for cell in cells],
        "verdict": ["" if row.undertrained else short_verdict(cell.verdict or "") for cell in cells],
    }
    if (found := row.recovered) is not None:
        share = found.note or recovered_text(found, spread=True)
        lines["recovered"] = [share if cell.multiple == found.multiple else "" for cell in cells]
    rows = [
        [CellText(name), *map(CellText, texts), CellText(unit_of(h) if name == "loss" else "")]
        for name, texts in lines.items()
        if any(text.strip("-") for text in texts)
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
    notes.append(also if others and h["protocol"] == HEADLINE else "")
    said = answer(comparison, curve_of(comparison))
    return Report(_facts(comparison), said, [table], list(filter(None, notes)), gap=True)


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
        head = f"at {place}" if comparison.header["baseline"] is not None else f"verdict at {place}"
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
    return comparison.header["protocol"] == RECALL and comparison.recall is not None


def _recall_note(comparison: Comparison) -> str:
    weak = any(row.recall and row.recall.learned is False for row in comparison.rows)
    last = "; (did not learn)" if weak else ""
    return f"recall@: % of planted values found within T, then the farthest{last}"


def _cell_text(comparison: Comparison, row: Row, i: int, spread: bool) -> CellText:
    baseline, metric = comparison.header["baseline"], comparison.header["metric"]
    cell, half = row.cells[i], ""
    if baseline is not None and (versus := cell.versus_baseline) is not None:
        text, half = printed_change(versus.difference, metric), _around(metric, None, versus.ci95)
    elif cell.mean is None or baseline is not None or comparison.columns[i].multiple == 1:
        text, half = _loss(cell, metric), _around(metric, cell.spread)
    elif cell.change is None:
        text = f"({_loss(cell, metric)})"
    else:
        text, half = _signed(cell.change, metric), _around(metric, cell.change_spread, cell.change_ci95)
    return CellText(text + half if spread else text, _mark(cell))


def _last_texts(comparison: Comparison, i: int) -> list[str]:
    """Return the verdicts at the longest length, and what is particular: policy, seeds, failures."""
    rows, baseline = comparison.rows, comparison.header["baseline"]
    counts = [max((cell.seeds for cell in row.cells), default=0) for row in rows]
    usual = max(set(counts), key=counts.count)
    all_weak = all(row.undertrained for row in rows)  # the answer says so once
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
        parts = [word, f"beyond={row.beyond}" if row.beyond else ""]
        if cell.mean is not None and cell.note:
            parts.append(cell.note)
        elif cell.seeds not in (0, usual):
            parts.append(plural(cell.seeds, "seed"))
        found.append(", ".join(filter(None, parts)))
    return found


def recovered_text(found: Recovered | None, spread: bool = False) -> str:
    """Return `12%`, with `spread` `12% ±3`; nothing where there is no room."""
    if found is None or found.share is None:
        return ""
    half = f" ±{50 * (found.ci95[1] - found.ci95[0]):.0f}" if spread and found.ci95 else ""
    return f"{100 * found.share:z.0f}%{half}"


def _recovered_note(rows: Sequence[Row]) -> list[str]:
    """Return what the recovered share is of, where a row has one."""
    places = " or ".join(dict.fromkeys(length(row.recovered.multiple) for row in rows if row.recovered))
    return [f"recovered: of what training at {places} gains (0% is cropping); blank: no room"] * bool(places)


def _unit_note(comparison: Comparison) -> str:
    h, unit = comparison.header, unit_of(comparison.header)
    if h["baseline"] is not None:
        return f"{unit}: difference to {h['baseline']} at the same length; of itself the loss"
    if any(row.curve for row in comparison.rows):
        return f"loss in {unit} at position T, then the rise over the mean from T/2 to T"
    chance = re.search(r"\(chance.*", h["unit"])
    what = "perplexity" if h["metric"] == "ppl" else f"loss in {unit}" + (f" {chance[0]}" if chance else "")
    return f"{what} at T, then the change when the same targets see more text"


def _droppable(columns: Sequence[Column]) -> list[int]:
    """Return the columns to leave out, first to last: those below T, then the longest but one, and so on."""
    below = [i for i, one in enumerate(columns, 1) if one.multiple < 1]
    past = [i for i, one in enumerate(columns[:-1], 1) if one.multiple > 1]
    return below + past[::-1]


def paper_report_of(comparison: Comparison, every: bool = False) -> Report:
    """Return the table of a paper, each number with its ±; its facts are the caption."""
    h, cells = comparison.header, [cell for row in comparison.rows for cell in row.cells]
    what = "Perplexity" if h["metric"] == "ppl" else f"Loss in {unit_of(h)}"
    other = f"difference to {h['baseline']}" if h["baseline"] else "change against T at other lengths"
    protocol = h["protocol"] + (f" ({PROTOCOLS[h['protocol']]})" if h["protocol"] in PROTOCOLS else "")
    first = f"{what} at T and {other}"
    if comparison.recall is not None:
        words = _recall_note(comparison) + ", ± half the 95% CI"
        first = words if _recall_only(comparison) else f"{first}; {words}"
    parts = [first, *_facts(comparison), f"protocol {protocol}"]
    if any(cell.spread is not None for cell in cells):
        parts.append("±: standard deviation over seeds")
    elif any(cell.change_ci95 for cell in cells):
        parts.append("±: half the 95% CI over documents")
    if any(cell.versus_best for cell in cells):
        parts.append("bold: best, tilde: not distinguishable from it")
    parts += [note.partition(";")[0] for note in _recovered_note(comparison.rows)]
    words = "-".join(["posenc", h["protocol"], h["metric"], *map(str, h["group"].values())])
    table = rows_table(comparison, every, spread=True)
    return Report(parts, "", [table], [], name="tab:" + re.sub(r"[^A-Za-z0-9-]+", "-", words))


# --- in full


def full_report_of(comparison: Comparison) -> Report:
    """Return everything: losses, changes, verdicts and comparisons with the best, each ± its interval."""
    h, metric, unit = comparison.header, comparison.header["metric"], unit_of(comparison.header)
    rows, baseline = comparison.rows, comparison.header["baseline"]
    seeds = any(cell.spread is not None for row in rows for cell in row.cells)
    over = "± standard deviation over seeds" if seeds else "± half the 95% CI over documents"
    what = "rise over the level at T" if any(row.curve for row in rows) else "change against T"
    tables = {
        kind: of_rows(comparison, title)
        for kind, title in (
            ("loss", f"loss, {unit}{' ' + over if seeds else ''}"),
            ("change", f"{what}, {unit} {over}"),
            ("verdict", "verdict"),
            (
                "versus",
                f"{f'minus {baseline}' if baseline else 'above the best'}, {unit}, "
                "with corrected 95% CI and p",
            ),
        )
        if h["protocol"] != RECALL and not (baseline and kind in ("change", "verdict"))
    }
    for i in shown_columns(comparison):
        for kind, table in tables.items():
            cells = [_full_text(kind, row, row.cells[i], metric, baseline) for row in rows]
            table.add(_head(comparison.columns[i]), cells)
    kept = [
        one for one in tables.values() if any(cell.text.strip("-") for row in one.rows for cell in row[1:])
    ]
    if comparison.recall is not None:
        kept.append(recall_table(comparison, full=True))
    return Report(
        facts=_facts(comparison),
        answer=answer(comparison, curve_of(comparison)),
        tables=[*kept, _side_table(comparison)],
        notes=full_notes(comparison),
        gap=True,
    )


def _full_text(kind: str, row: Row, cell: Cell, metric: str, baseline: str | None) -> CellText:
    if kind == "loss":
        return CellText(_loss(cell, metric) + _around(metric, cell.spread), _mark(cell))
    if kind == "change":
        half = _around(metric, cell.change_spread, cell.change_ci95)
        return CellText("-" if _is_base(row, cell) else _signed(cell.change, metric) + half)
    if kind == "verdict":
        return CellText(short_verdict(cell.verdict or "-"))
    return CellText(_versus_text(cell.versus_baseline if baseline else cell.versus_best, metric))


def _versus_text(versus: Versus | None, metric: str) -> str:
    if versus is None or versus.word == "best":
        return "-" if versus is None else "best"
    ends = ", ".join(printed_change(end, metric) for end in versus.ci95 or ())
    p = "" if versus.p is None else " p<0.001" if versus.p < 0.001 else f" p={versus.p:.3f}"
    method = "" if versus.method == "welch" else f" {versus.method}"
    return printed_change(versus.difference, metric) + (f" [{ends}]" if ends else "") + p + method


def _side_table(comparison: Comparison) -> Table:
    """Return the seeds, effective context, headroom and recall horizon of each row."""
    rows, table = comparison.rows, of_rows(comparison, "per row")
    found = [row.recovered for row in rows]
    columns = {
        "seeds": [" ".join(map(str, row.seeds)) for row in rows],
        "effective context": [
            length(context.multiple) + "+" * context.longest if (context := row.effective_context) else ""
            for row in rows
        ],
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
        lines.append(_signed(cell.change, metric) + _around(metric, cell.change_spread, cell.change_ci95))
    return lines + ([short_verdict(cell.verdict)] if cell.verdict else [])


def _mark(cell: Cell) -> str:
    return MARKS.get(cell.versus_best.word, "") if cell.versus_best else ""


def _is_base(row: Row, cell: Cell) -> bool:
    """Return whether the row's changes are against this cell."""
    return cell.multiple == 1 and row.extend is None and row.curve is None


def _loss(cell: Cell, metric: str) -> str:
    """Return the loss, or why there is none."""
    if cell.mean is not None:
        return printed(cell.mean, metric)
    return (cell.note or "-").partition(",")[0][:LONGEST_REASON]


def _signed(value: float | None, metric: str) -> str:
    return "" if value is None else printed_change(value, metric)


def _around(metric: str, spread: float | None, interval: Sequence[float] | None = None) -> str:
    """Return ± the spread over seeds, else half the interval; nothing without either."""
    half = (interval[1] - interval[0]) / 2 if spread is None and interval else spread
    return "" if half is None else f"±{printed(half, metric)}"
