"""Tidy tables of a comparison, for pandas or a spreadsheet.

`pandas.DataFrame(cells_table(compare_runs(runs)))`. Protocols, extensions and whatever tells tables apart are
columns, a column has one unit, numbers are not rounded, and all lines of a table have the same keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from posenc.results.comparison import EVERYTHING, CompareRequest, Comparison, compare_runs
from posenc.results.load import Run
from posenc.results.rows import Cell, Row, make_cell
from posenc.results.schema import RECALL
from posenc.results.statistics import Versus

Line = dict[str, Any]


def cells_table(comparisons: Sequence[Comparison]) -> list[Line]:
    """Return a line for each row and window, means over seeds; a row without a window has its reason."""
    return _aligned(line for one in comparisons for row in one.rows for line in _cells(one, row))


def seeds_table(runs: Sequence[Run], request: CompareRequest = EVERYTHING) -> list[Line]:
    """Return a line for each run and window of the tables of `compare_runs`."""
    return _aligned(
        _head(comparison, row) | _seed(replace(row, members=[member]), column.multiple)
        for comparison in compare_runs(runs, request)
        for row in comparison.rows
        for member in row.members
        for column in comparison.columns
    )


def _head(comparison: Comparison, row: Row) -> Line:
    named = {key: getattr(row, key) for key in ("label", "encoding", "extend", "beyond")}
    h = comparison.header
    return {"protocol": h["protocol"], **h["group"], **named, **row.mixed}


def _cells(comparison: Comparison, row: Row) -> Iterator[Line]:
    h, head, found = comparison.header, _head(comparison, row), row.recovered
    of_row: Line = {"undertrained": row.undertrained is not None}
    if row.curve is not None:
        of_row["breaks_at"] = " ".join("none" if at is None else str(at) for at in row.curve.breaks_at)
    if found is not None:
        of_row |= _number("room_nats", found.room, found.room_ci95)
        of_row |= _number("recovered", found.share, found.ci95)
    if h["reference"] is not None:
        of_row[f"reference_{h['metric']}"] = h["reference"]["mean"]
    for cell in row.cells:
        yield head | _cell(cell, h["metric"]) | of_row
    if not row.cells:
        yield head | {"note": "; ".join(row.notes)}
    for one in row.recall.grid if row.recall else ():
        keys = ("multiple", "window", "seeds", "distance", "pairs", "windows")
        line = {key: getattr(one, key) for key in keys} | {"recall": one.accuracy, "recall_sd": one.spread}
        yield head | {"protocol": RECALL} | line | _number("recall", one.accuracy, one.ci95)


def _cell(cell: Cell, metric: str) -> Line:
    loss, change = f"loss_{metric}", f"change_{metric}"
    line: Line = {"multiple": cell.multiple, "window": cell.window, "seeds": cell.seeds}
    line |= {loss: cell.mean, f"{loss}_sd": cell.spread, change: cell.change}
    line |= {f"{change}_sd": cell.change_spread} | _number(change, cell.change, cell.change_ci95)
    if cell.verdict is not None:
        line |= _number("change_bpb", cell.verdict_change, cell.verdict_ci95)
    line["verdict"] = cell.verdict
    line |= _versus("best", cell.versus_best, metric) | _versus("baseline", cell.versus_baseline, metric)
    return line | {"targets": cell.targets, "documents": cell.documents, "note": cell.note}


def _versus(name: str, versus: Versus | None, metric: str) -> Line:
    """Return the columns `versus_best`, its word, and `versus_best_nats`, the difference."""
    if versus is None:
        return {}
    difference = _number(f"versus_{name}_{metric}", versus.difference, versus.ci95)
    more = {f"versus_{name}_p": versus.p, f"versus_{name}_method": versus.method}
    return {f"versus_{name}": versus.word} | difference | more


def _seed(row: Row, multiple: float) -> Line:
    """Return the columns of a row of one run; its intervals are over documents."""
    (member,) = row.members
    nats, bits = make_cell(row, multiple, "nats"), make_cell(row, multiple, "bpb")
    line: Line = {"run": str(member.run.path), "seed": member.run.seed}
    line |= {"multiple": multiple, "window": nats.window, "loss_nats": nats.mean}
    line |= _number("change_nats", nats.change, nats.change_ci95)
    if member.curve is None:
        line |= {"loss_bpb": bits.mean} | _number("change_bpb", bits.change, bits.change_ci95)
    line |= {"verdict": nats.verdict, "targets": nats.targets, "documents": nats.documents}
    first = dict(member.records[0]) if member.records else {}
    line |= {key: first.get(key) for key in ("corpus", "split", "stride", "checkpoint_step")}
    return line | {"note": nats.note}


def _number(name: str, value: float | None, interval: Sequence[float] | None) -> Line:
    """Return a number with the ends of its interval."""
    low, high = interval or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _aligned(lines: Iterable[Line]) -> list[Line]:
    """Return the lines with the keys of all, in the order of their first appearance."""
    found = list(lines)
    empty = dict.fromkeys(key for line in found for key in line)
    return [empty | line for line in found]
