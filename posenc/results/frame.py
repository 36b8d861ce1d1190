"""Tidy tables of a comparison, for pandas or a spreadsheet.

`pandas.DataFrame(cells_table(compare_runs(runs)))`. Protocols, extensions and whatever tells tables apart are
columns, a column has one unit, numbers are not rounded, and all lines of a table have the same keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from posenc.results.cells import Cell, Column, make_cell
from posenc.results.comparison import EVERYTHING, CompareRequest, Comparison, Row, compare_runs
from posenc.results.measurements import Member
from posenc.results.recall import RecallCell
from posenc.results.records import RECALL
from posenc.results.runs import Run
from posenc.results.statistics.intervals import Interval
from posenc.results.statistics.ranking import Versus

Line = dict[str, Any]


def cells_table(comparisons: Sequence[Comparison]) -> list[Line]:
    """Return a line for each row and window, means over seeds; a row without a window has its reason."""
    return _aligned(
        line for comparison in comparisons for row in comparison.rows for line in _row_lines(comparison, row)
    )


def seeds_table(runs: Sequence[Run], request: CompareRequest = EVERYTHING) -> list[Line]:
    """Return a line for each run and window of the tables of `compare_runs`."""
    return _aligned(
        _head(comparison, row) | _seed_line(member, column)
        for comparison in compare_runs(runs, request)
        for row in comparison.rows
        for member in row.members
        for column in comparison.columns
    )


def _head(comparison: Comparison, row: Row) -> Line:
    """Return what tells the lines of a row from those of other rows and tables."""
    return {
        "protocol": comparison.header.protocol,
        **comparison.header.group,
        "label": row.label,
        "encoding": row.encoding,
        "extend": row.extend,
        "beyond": row.beyond,
        **row.mixed,
    }


def _row_lines(comparison: Comparison, row: Row) -> Iterator[Line]:
    """Yield a line for each cell of a row, and for each place of its recall."""
    head = _head(comparison, row)
    about_row = _about_row(comparison, row)
    for cell in row.cells:
        yield head | _cell_line(cell, comparison.header.metric) | about_row
    if not row.cells:
        yield head | {"note": "; ".join(row.notes)}
    if row.recall is not None:
        for place in row.recall.grid:
            yield head | _recall_line(place)


def _about_row(comparison: Comparison, row: Row) -> Line:
    """Return what each line of a row repeats."""
    line: Line = {"undertrained": row.undertrained is not None}
    if row.curve is not None:
        positions = ["none" if position is None else str(position) for position in row.curve.breaks_at]
        line["breaks_at"] = " ".join(positions)
    if row.recovered is not None:
        line |= _number("room_nats", row.recovered.room, row.recovered.room_ci95)
        line |= _number("recovered", row.recovered.share, row.recovered.ci95)
    if comparison.header.reference is not None:
        line[f"reference_{comparison.header.metric}"] = comparison.header.reference.mean
    return line


def _cell_line(cell: Cell, metric: str) -> Line:
    loss = f"loss_{metric}"
    change = f"change_{metric}"
    line: Line = {
        "multiple": cell.multiple,
        "window": cell.window,
        "seeds": cell.seeds,
        loss: cell.mean,
        f"{loss}_sd": cell.spread,
        change: cell.change,
        f"{change}_sd": cell.change_spread,
        **_number(change, cell.change, cell.change_ci95),
    }
    if cell.verdict is not None:
        line |= _number("change_bpb", cell.verdict_change, cell.verdict_ci95)
    return {
        **line,
        "verdict": cell.verdict,
        **_versus("best", cell.versus_best, metric),
        **_versus("baseline", cell.versus_baseline, metric),
        "targets": cell.targets,
        "documents": cell.documents,
        "note": cell.note,
    }


def _recall_line(place: RecallCell) -> Line:
    return {
        "protocol": RECALL,
        "multiple": place.multiple,
        "window": place.window,
        "seeds": place.seeds,
        "distance": place.distance,
        "pairs": place.pairs,
        "windows": place.windows,
        "recall": place.accuracy,
        "recall_sd": place.spread,
        **_number("recall", place.accuracy, place.ci95),
    }


def _versus(name: str, versus: Versus | None, metric: str) -> Line:
    """Return the columns `versus_best`, its word, and `versus_best_nats`, the difference."""
    if versus is None:
        return {}
    return {
        f"versus_{name}": versus.word,
        **_number(f"versus_{name}_{metric}", versus.difference, versus.ci95),
        f"versus_{name}_p": versus.p,
        f"versus_{name}_method": versus.method,
    }


def _seed_line(member: Member, column: Column) -> Line:
    """Return the columns of one run at one window; its intervals are over documents."""
    nats = make_cell([member], column.multiple, "nats")
    line: Line = {
        "run": str(member.run.path),
        "seed": member.run.seed,
        "multiple": column.multiple,
        "window": nats.window,
        "loss_nats": nats.mean,
        **_number("change_nats", nats.change, nats.change_ci95),
    }
    has_curve = any(measurement.curve is not None for measurement in member.recorded)
    if not has_curve:
        bits = make_cell([member], column.multiple, "bpb")
        line |= {"loss_bpb": bits.mean, **_number("change_bpb", bits.change, bits.change_ci95)}
    first = member.recorded[0] if member.recorded else None
    return {
        **line,
        "verdict": nats.verdict,
        "targets": nats.targets,
        "documents": nats.documents,
        "corpus": None if first is None else first.corpus,
        "split": None if first is None else first.target_set.split,
        "stride": None if first is None else first.target_set.stride,
        "checkpoint_step": None if first is None else first.step,
        "note": nats.note,
    }


def _number(name: str, value: float | None, interval: Interval | None) -> Line:
    """Return a number with the ends of its interval."""
    low, high = interval or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _aligned(lines: Iterable[Line]) -> list[Line]:
    """Return the lines with the keys of all, in the order of their first appearance."""
    listed = list(lines)
    empty = dict.fromkeys(key for line in listed for key in line)
    return [empty | line for line in listed]
