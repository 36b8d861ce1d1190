"""Turn comparisons into reports: facts, the answer, tables of text, notes. The writers know only these."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

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
    recall_line,
    sample_line,
    short_label,
    subject,
    token_of,
    unit_of,
)
from posenc.results.cells import Cell
from posenc.results.comparison import Column, Comparison, Row, protocols_of
from posenc.results.headroom import Recovered
from posenc.results.load import Run
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


# --- one screen


def report_of(comparison: Comparison, runs: Sequence[Run] = (), every: bool = False) -> Report:
    """Return the short report: a line a row, or a line a quantity for a single row.

    `every`: lengths below T are shown too.
    """
    found = subject(comparison.rows)
    recall_only = _recall_only(comparison)
    special = comparison.header["baseline"] or not comparison.columns or recall_only
    if found is not None and not special:
        return _run_report(comparison, *found, runs)
    notes = [] if recall_only else [_unit_note(comparison)]
    notes += _recovered_note(comparison.rows)
    notes += [] if comparison.recall is None else [_recall_note(comparison)]
    if recall_only:
        notes.append("more: --full, --explain, --plot FILE (the grid of windows and distances)")
    elif any(row.cells[i].versus_best for row in comparison.rows for i in range(len(row.cells))):
        best = "lowest loss" if comparison.recall is None else "best"
        notes.append(f"{BEST} {best} of the column, {TIED} tied. More: --full, --explain, --protocol all")
    else:
        notes.append("more: posenc compare --full, --explain, --protocol all")
    return Report(
        facts=facts_of(comparison, runs),
        answer=answer(comparison),
        tables=[rows_table(comparison, every=every)],
        notes=notes,
    )


def _run_report(comparison: Comparison, row: Row, plain: Row | None, runs: Sequence[Run]) -> Report:
    own = [run for run in runs if str(run.path) in row.runs]
    measured = [name for name in protocols_of(own) if name not in (HEADLINE, RECALL)]
    others = measured if comparison.header["protocol"] == HEADLINE else []
    also = f"also measured: {', '.join(others)} (posenc compare --protocol all)" if others else ""
    only = replace(comparison, rows=[row])
    notes = [recall_line(comparison, row.recall), sample_line(comparison), *_recovered_note([row]), also]
    return Report(
        facts=facts_of(only, runs),
        answer=answer(comparison, None if row.curve or plain else curve_of(runs)),
        tables=[_run_table(comparison, row, plain)],
        notes=list(filter(None, notes)),
        gap=True,
    )


def _run_table(comparison: Comparison, row: Row, plain: Row | None) -> Table:
    """Return a column a length: loss, change, its interval, the verdict."""
    h, metric = comparison.header, comparison.header["metric"]
    shown = [i for i, column in enumerate(comparison.columns) if column.shown]
    cells = [row.cells[i] for i in shown]
    lines = {
        "loss": [_loss(cell, metric) for cell in cells],
        "change": ["-" if _is_base(row, cell) else _signed(cell.change, metric) for cell in cells],
        "95% CI": [_around(metric, None, cell.change_ci95) for cell in cells],
        "sd of seeds": [_around(metric, cell.change_spread) for cell in cells],
        "verdict": [short_verdict(cell.verdict or "") for cell in cells],
    }
    if plain is not None and any(plain.cells[i].change for i in shown):
        lines[f"without {row.extend}"] = [_signed(plain.cells[i].change, metric) for i in shown]
    if row.undertrained:
        del lines["verdict"]
    if (found := row.recovered) is not None:
        lines["recovered"] = [
            found.note or recovered_text(found, spread=True) if cell.multiple == found.multiple else ""
            for cell in cells
        ]
    if row.curve:
        lines["rise"] = lines.pop("change")
    rows = [
        [CellText(name), *map(CellText, texts), CellText(unit_of(h) if name == "loss" else "")]
        for name, texts in lines.items()
        if any(text.strip("-") for text in texts)
    ]
    heads = [
        (str(column.window) if column.window else length(column.multiple))
        + (" = T" if column.multiple == 1 else "")
        for column in (comparison.columns[i] for i in shown)
    ]
    drop = _droppable([comparison.columns[i].multiple for i in shown])
    name = "position" if row.curve else "context"
    return Table([name, *heads, ""], rows, left=(len(heads) + 1,), drop=[i + 1 for i in drop])


def rows_table(comparison: Comparison, every: bool = False, spread: bool = False) -> Table:
    """Return a line a row: the loss at T, the change elsewhere, the verdict at the longest length.

    With a baseline the differences to it; with `spread` each number with its ±.
    """
    h, rows = comparison.header, comparison.rows
    if _recall_only(comparison):
        return recall_table(comparison, spread)
    shown = [i for i, column in enumerate(comparison.columns) if column.shown]
    if not every and any(comparison.columns[i].multiple > 1 for i in shown):
        shown = [i for i in shown if comparison.columns[i].multiple >= 1]
    columns = [comparison.columns[i] for i in shown]
    place = length(columns[-1].multiple) if columns else ""
    last = f"verdict at {place}" if columns else "reason"
    if any(row.curve for row in rows):
        last = "breaks at"
    elif h["baseline"] is not None:
        last = f"at {place}"
    weak = all(row.undertrained for row in rows)  # the answer says so once
    recovered = any(row.recovered for row in rows)
    table = [
        [
            CellText(short_label(row)),
            *(_cell_text(comparison, row, i, spread) for i in shown),
            *([CellText(recovered_text(row.recovered, spread))] if recovered else []),
            CellText(_last_text(comparison, row, shown[-1], weak) if shown else "; ".join(row.notes)),
        ]
        for row in rows
    ]
    heads = [_head(column) for column in columns] + ["recovered"] * recovered
    drop = [i + 1 for i in _droppable([column.multiple for column in columns])]
    left: tuple[int, ...] = (len(heads) + 1,)
    if not any(row[-1].text for row in table):
        table, left = [row[:-1] for row in table], ()
    else:
        heads.append(last)
    if comparison.recall is not None:
        if heads[-1] == last and last.startswith("verdict"):
            heads[-1:] = ["verdict"]  # as wide as its words, so that all fit into 80 columns
        more = recall_table(comparison, spread)
        places = [len(heads) + i for i in range(2, len(more.heads) - 1)]
        drop = [*drop[:-1], *places[::-1], *drop[-1:]]
        heads += more.heads[1:]
        table = [[*row, *own[1:]] for row, own in zip(table, more.rows, strict=True)]
    return Table(["encoding", *heads], table, left=left, drop=drop)


def recall_table(comparison: Comparison, spread: bool = False, full: bool = False) -> Table:
    """Return a line a row: recall within T, and in each longer window at its farthest distance.

    In per cent; with `spread` ± half the 95% interval, with `full` its ends and every rank.
    """
    assert comparison.recall is not None
    heads = ["recall@T", *(f"@{length(one)}" for one in comparison.recall.multiples)]
    table = []
    for row in comparison.rows:
        cells = [row.recall.within, *row.recall.beyond] if row.recall else [None for _ in heads]
        learned = row.recall is not None and row.recall.learned is not False
        texts = [_recall_text(cell, learned, spread, full) for cell in cells]
        marks = [MARKS.get(cell.rank or "", "") if cell else "" for cell in cells]
        last = len(marks) - 1  # the one that is ranked by, where there is no room for all
        marks = [mark if full or i == last else "" for i, mark in enumerate(marks)]
        table.append([CellText(short_label(row)), *map(CellText, texts, marks)])
    return Table(["encoding", *heads], table, "recall, % with 95% CI" if full else "")


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


def _last_text(comparison: Comparison, row: Row, i: int, weak: bool) -> str:
    """Return the verdict at the longest length, and what is particular: policy, seeds, failures."""
    cell = row.cells[i]
    counts = [max((one.seeds for one in other.cells), default=0) for other in comparison.rows]
    usual = max(set(counts), key=counts.count)
    if row.curve is not None:
        word = breaks_text(row.curve)
    elif comparison.header["baseline"] is not None:
        versus = cell.versus_baseline
        word = versus.word if versus else "baseline" if label(row) == comparison.header["baseline"] else ""
    else:
        word = "undertrained" if row.undertrained else short_verdict(cell.verdict or "")
        word = "" if weak else word
    parts = [word, f"beyond={row.beyond}" if row.beyond else ""]
    if cell.mean is not None and cell.note:
        parts.append(cell.note)
    elif cell.seeds not in (0, usual):
        parts.append(plural(cell.seeds, "seed"))
    return ", ".join(filter(None, parts))


def recovered_text(found: Recovered | None, spread: bool = False) -> str:
    """Return `12%`, with `spread` `12% ±3`; nothing where there is no room."""
    if found is None or found.share is None:
        return ""
    half = f" ±{50 * (found.ci95[1] - found.ci95[0]):.0f}" if spread and found.ci95 else ""
    return f"{100 * found.share:z.0f}%{half}"


def _recovered_note(rows: Sequence[Row]) -> list[str]:
    """Return what the recovered share is of, where a row has one."""
    lengths = dict.fromkeys(length(row.recovered.multiple) for row in rows if row.recovered)
    places = " or ".join(lengths)
    return [f"recovered: of what training at {places} gains (0% is cropping); blank: no room"] * bool(lengths)


def _unit_note(comparison: Comparison) -> str:
    h = comparison.header
    unit, context = unit_of(h), "see more text"
    if h["baseline"] is not None:
        return f"{unit}: difference to {h['baseline']} at the same length; of itself the loss"
    if any(row.curve for row in comparison.rows):
        return f"loss in {unit} at position T, then the rise over the mean from T/2 to T"
    extra = h["unit"].partition("(")[2]
    chance = f" ({extra}" if extra.startswith("chance") else ""
    what = "perplexity" if h["metric"] == "ppl" else f"loss in {unit}"
    return f"{what}{chance} at T, then the change when the same targets {context}"


def _droppable(multiples: Sequence[float]) -> list[int]:
    """Return the columns to leave out, first to last: those below T, then the longest but one, and so on."""
    below = [i for i, one in enumerate(multiples) if one < 1]
    past = [i for i, one in enumerate(multiples[:-1]) if one > 1]
    return below + past[::-1]


def paper_report_of(comparison: Comparison, runs: Sequence[Run] = (), every: bool = False) -> Report:
    """Return the table of a paper, each number with its ±; its facts are the caption."""
    h, cells = comparison.header, [cell for row in comparison.rows for cell in row.cells]
    what = "Perplexity" if h["metric"] == "ppl" else f"Loss in {unit_of(h)}"
    other = f"difference to {h['baseline']}" if h["baseline"] else "change against T at other lengths"
    protocol = h["protocol"] + (f" ({PROTOCOLS[h['protocol']]})" if h["protocol"] in PROTOCOLS else "")
    first = f"{what} at T and {other}"
    if comparison.recall is not None:
        words = _recall_note(comparison) + ", ± half the 95% CI"
        first = words if _recall_only(comparison) else f"{first}; {words}"
    parts = [first, *facts_of(comparison, runs), f"protocol {protocol}"]
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


def full_report_of(comparison: Comparison, runs: Sequence[Run] = ()) -> Report:
    """Return everything: losses, changes, verdicts and comparisons with the best, each ± its interval."""
    h, metric, unit = comparison.header, comparison.header["metric"], unit_of(comparison.header)
    rows = comparison.rows
    seeds = any(cell.spread is not None for row in rows for cell in row.cells)
    over = "± standard deviation over seeds" if seeds else "± half the 95% CI over documents"
    what = "rise over the level at T" if any(row.curve for row in rows) else "change against T"
    compared = f"minus {h['baseline']}" if h["baseline"] else "above the best"

    def loss(row: Row, cell: Cell) -> CellText:
        return CellText(_loss(cell, metric) + _around(metric, cell.spread), _mark(cell))

    def change(row: Row, cell: Cell) -> CellText:
        half = _around(metric, cell.change_spread, cell.change_ci95)
        return CellText("-" if _is_base(row, cell) else _signed(cell.change, metric) + half)

    def verdict(row: Row, cell: Cell) -> CellText:
        return CellText(short_verdict(cell.verdict or "-"))

    def versus(row: Row, cell: Cell) -> CellText:
        return _versus_text(cell.versus_baseline if h["baseline"] else cell.versus_best, metric)

    kinds: dict[str, Callable[[Row, Cell], CellText]] = {f"loss, {unit}{' ' + over if seeds else ''}": loss}
    if h["baseline"] is None:
        kinds |= {f"{what}, {unit} {over}": change, "verdict": verdict}
    kinds[f"{compared}, {unit}, with corrected 95% CI and p"] = versus
    shown = [i for i, column in enumerate(comparison.columns) if column.shown]
    heads = ["encoding", *(_head(comparison.columns[i]) for i in shown)]
    tables = [
        Table(
            heads,
            [[CellText(short_label(row)), *(of(row, row.cells[i]) for i in shown)] for row in rows],
            title,
        )
        for title, of in kinds.items()
    ]
    if h["protocol"] == RECALL:
        tables = []
    tables = [one for one in tables if any(cell.text.strip("-") for row in one.rows for cell in row[1:])]
    if comparison.recall is not None:
        tables.append(recall_table(comparison, full=True))
    return Report(
        facts=facts_of(comparison, runs),
        answer=answer(comparison, None if len(rows) != 1 else curve_of(runs)),
        tables=[*tables, _side_table(comparison)],
        notes=full_notes(comparison),
        gap=True,
    )


def _versus_text(versus: Versus | None, metric: str) -> CellText:
    if versus is None or versus.word == "best":
        return CellText("-" if versus is None else "best")
    ends = (
        "" if versus.ci95 is None else f" [{', '.join(printed_change(end, metric) for end in versus.ci95)}]"
    )
    p = "" if versus.p is None else " p<0.001" if versus.p < 0.001 else f" p={versus.p:.3f}"
    method = "" if versus.method == "welch" else f" {versus.method}"
    return CellText(f"{printed_change(versus.difference, metric)}{ends}{p}{method}")


def _side_table(comparison: Comparison) -> Table:
    """Return of each row its seeds, effective context and probes; the rest is in --format json."""
    columns: dict[str, list[str]] = {
        "seeds": [" ".join(map(str, row.seeds)) for row in comparison.rows],
        "effective context": [
            length(context.multiple) + "+" * context.longest if (context := row.effective_context) else ""
            for row in comparison.rows
        ],
    }
    for i, probe in enumerate(comparison.probes):
        cells = [row.probes[i] for row in comparison.rows]
        columns[f"{probe.name} {length(probe.multiple)}"] = [_loss(cell, "nats") for cell in cells]
    found = [row.recovered for row in comparison.rows]
    columns[f"room, nats/{token_of(comparison.header)}"] = [
        "" if one is None else f"{printed_change(one.room, 'nats')}{_around('nats', None, one.room_ci95)}"
        for one in found
    ]
    columns["recovered"] = [
        (one.note or recovered_text(one, spread=True)) + f" at {length(one.multiple)}" if one else ""
        for one in found
    ]
    columns["recall horizon"] = [horizon_text(row.recall) for row in comparison.rows]
    columns = {head: texts for head, texts in columns.items() if any(texts)}
    rows = [
        [CellText(short_label(row)), *(CellText(texts[i] or "-") for texts in columns.values())]
        for i, row in enumerate(comparison.rows)
    ]
    return Table(["encoding", *columns], rows, "per row")


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
