"""Turn a comparison into what every format prints: title, answer, tables of text, notes.

This is the only place beside `captions` that reads a Comparison for a table; the writers know only Report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from posenc.report.captions import captions, label, length, spread_is_of, summary_sentence, title
from posenc.results.cells import Cell, CurveSummary
from posenc.results.comparison import Column, Comparison, Row
from posenc.results.ranking import Mark, short_verdict
from posenc.results.schema import printed, printed_change

MARKS = {"lowest": "*", "tie": "=", "unclear": "?"}


@dataclass
class CellText:
    """The text of a cell in lines (loss, change, verdict, or why there is none), and its mark."""

    lines: list[str]
    mark: Mark | None = None


@dataclass
class Table:
    """Rows of cells, `cells[row][column]`; a head is a list of lines."""

    heads: list[list[str]]
    names: list[str]
    cells: list[list[CellText]]
    title: str = ""
    stub: str = "encoding"  # head of the names
    notes: list[tuple[str, str]] = field(default_factory=list)  # a word (pass, fail, a name) and its text


@dataclass
class Report:
    """What a reader gets: titles, the answer, tables, notes. Plain text, which the writers escape."""

    titles: list[str]
    answer: str
    tables: list[Table]
    notes: list[str]


def report_of(comparison: Comparison, marks: Mapping[str, str] = MARKS) -> Report:
    """Return the tables of a comparison; `marks` is how the format marks its cells."""
    side = side_table(comparison)
    return Report(
        titles=[title(comparison)],
        answer=summary_sentence(comparison),
        tables=[main_table(comparison)] + ([side] if side is not None else []),
        notes=captions(comparison, marks),
    )


def main_table(comparison: Comparison) -> Table:
    """Return the losses by length, those of hidden columns left out."""
    shown = [i for i, column in enumerate(comparison.columns) if column.shown]
    return Table(
        heads=[_head(comparison.columns[i]) for i in shown],
        names=[label(row) for row in comparison.rows],
        cells=[[cell_text(row.cells[i], comparison) for i in shown] for row in comparison.rows],
    )


def side_table(comparison: Comparison) -> Table | None:
    """Return how rows use their context, slopes, probes and extensions; None where no row has any."""
    rows, metric, of = comparison.rows, comparison.header["metric"], spread_is_of(comparison)
    columns: list[tuple[list[str], list[list[str]]]] = [
        (["effective", "context"], [_effective(row) for row in rows]),
        (["T against", "T/2"], [_uses(row) for row in rows]),
        (["slope", "past T"], [_slope(row.curve, of) for row in rows]),
        (["breaks", "at"], [_breaks(row.curve) for row in rows]),
    ]
    for i, probe in enumerate(comparison.probes):
        texts = [_cell_text(row.probes[i].cell, "nats", of).lines for row in rows]
        columns.append(([probe.protocol, length(probe.multiple)], texts))
    for i, extension in enumerate(comparison.extensions):
        cells = [row.extensions[i] for row in rows]
        texts = [[] if cell is None else _cell_text(cell, metric, of).lines for cell in cells]
        columns.append(([extension.name, length(extension.multiple)], texts))
    columns = [(head, texts) for head, texts in columns if any(texts)]
    if not columns:
        return None
    entries = [[CellText(texts[i] or ["-"]) for _, texts in columns] for i in range(len(rows))]
    return Table([head for head, _ in columns], [label(row) for row in rows], entries)


def cell_text(cell: Cell, comparison: Comparison) -> CellText:
    """Return a cell as text: loss, change or difference to the baseline, verdict, or why there is none."""
    h = comparison.header
    return _cell_text(cell, h["metric"], spread_is_of(comparison), h["baseline"] is not None)


def _cell_text(cell: Cell, metric: str, of: str | None, baseline: bool = False) -> CellText:
    """`of` is what the table's ± is over; with a `baseline` no change against 1x is shown."""
    lines = []
    if cell.mean is not None:
        lines.append(printed(cell.mean, metric) + _plus_minus(cell.spread if of == "seeds" else None, metric))
        if cell.against is not None:
            lines += [_change(cell.against.difference, _half(cell.against.ci95), metric), cell.against.word]
        elif cell.change is not None and (cell.multiple != 1 or cell.change != 0) and not baseline:
            lines.append(_change(cell.change, _over(of, cell.change_spread, cell.change_ci95), metric))
        if cell.verdict is not None and not baseline:
            lines.append(short_verdict(cell.verdict))
        if cell.note is not None:  # the reason is in the notes
            lines.append(f"only {cell.seeds} seed" + ("s" if cell.seeds > 1 else ""))
    elif cell.note is not None:
        lines += cell.note.split(", ")
    return CellText(lines or ["-"], cell.mark)


def _head(column: Column) -> list[str]:
    """`4x` over its tokens; the training length is marked."""
    name = length(column.multiple) + (" (T)" if column.multiple == 1 else "")
    return [name] if column.window is None else [name, str(column.window)]


def _change(value: float, half: float | None, metric: str) -> str:
    return printed_change(value, metric) + _plus_minus(half, metric)


def _plus_minus(half: float | None, metric: str) -> str:
    return "" if half is None else f"±{printed(half, metric)}"


def _half(interval: Sequence[float] | None) -> float | None:
    return None if interval is None else (interval[1] - interval[0]) / 2


def _over(of: str | None, spread: float | None, interval: Sequence[float] | None) -> float | None:
    """Return what the table's ± is over: the deviation over seeds, or half the interval over documents."""
    return spread if of == "seeds" else _half(interval) if of == "documents" else None


def _effective(row: Row) -> list[str]:
    context = row.effective_context
    return [] if context is None else [length(context.multiple) + ("+" if context.longest else "")]


def _uses(row: Row) -> list[str]:
    uses = row.uses_context
    return [] if uses is None else [_change(uses.change, _half(uses.ci95), "nats")]


def _slope(curve: CurveSummary | None, of: str | None) -> list[str]:
    if curve is None or curve.slope is None:
        return []
    half = _over(of, curve.slope_spread, curve.slope_ci95)
    return [f"{curve.slope:+.1e}" + ("" if half is None else f"±{half:.0e}")]


def _breaks(curve: CurveSummary | None) -> list[str]:
    """Return the first and the last position over the seeds, and how many of the seeds break."""
    if curve is None:
        return []
    broken = sorted(position for position in curve.breaks_at if position is not None)
    if not broken:
        return ["no break" if all(curve.holds) else "unclear"]
    ends = dict.fromkeys(length(round(end / curve.train_length, 2)) for end in (broken[0], broken[-1]))
    part = [] if len(broken) == len(curve.breaks_at) else [f"{len(broken)} of {len(curve.breaks_at)} seeds"]
    return [" to ".join(ends), *part]
