"""Tidy tables of a comparison, for pandas or a spreadsheet, and a comparison beside a paper's table.

`pandas.DataFrame(cells_table(compare_runs(runs)))`. Protocols, extensions and whatever tells tables apart are
columns, a column has one unit, numbers are not rounded, and all lines of a table have the same keys.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError
from posenc.results.cells import Cell, Row, make_bin_cell, make_cell
from posenc.results.comparison import EVERYTHING, CompareRequest, Comparison, compare_runs, protocols_of
from posenc.results.load import Run
from posenc.results.ranking import Versus
from posenc.results.schema import HEADLINE, INFLATED, Record
from posenc.results.selection import Selected

Line = dict[str, Any]


def cells_table(comparisons: Sequence[Comparison]) -> list[Line]:
    """Return a line for each row and window, means over seeds; a row without a window has its reason."""
    return _aligned(line for one in comparisons for row in one.rows for line in _cells(one, row))


def seeds_table(runs: Sequence[Run], request: CompareRequest = EVERYTHING) -> list[Line]:
    """Return a line for each run and window of the tables of `compare_runs`."""
    return _aligned(
        head | _seed(replace(row, members=[member]), column.multiple)
        for comparison, row, member, head in _members(runs, request)
        for column in comparison.columns
    )


def documents_table(runs: Sequence[Run], request: CompareRequest = EVERYTHING) -> list[Line]:
    """Return a line for each run, window and document of the tables of `compare_runs`."""
    return _aligned(
        head | line
        for comparison, row, member, head in _members(runs, request)
        for multiple, record in sorted(member.cells.get(row.extension, {}).items())
        if "curve" in record or any(column.multiple == multiple for column in comparison.columns)
        for line in _documents(record, member.record(None, 1.0))
    )


def _members(
    runs: Sequence[Run], request: CompareRequest
) -> Iterator[tuple[Comparison, Row, Selected, Line]]:
    """Yield each run of each row, with its first columns."""
    for comparison in compare_runs(runs, request):
        for row in comparison.rows:
            for member in row.members:
                own = {"run": str(member.run.path), "seed": member.run.seed}
                yield comparison, row, member, _head(comparison, row) | own


def _head(comparison: Comparison, row: Row) -> Line:
    return {
        "protocol": comparison.header["protocol"],
        **comparison.header["group"],
        "label": row.label,
        "encoding": row.encoding,
        "extend": row.extend,
        "beyond": row.beyond,
        **row.mixed,
    }


def _cells(comparison: Comparison, row: Row) -> Iterator[Line]:
    h, head = comparison.header, _head(comparison, row)
    metric = h["metric"]
    of_row: Line = {"undertrained": row.undertrained is not None, "effective_context": None}
    if row.effective_context is not None:
        of_row["effective_context"] = row.effective_context.window
    if row.uses_context is not None:
        name = "uses_context_bpb" if metric == "bpb" else "uses_context_nats"
        of_row |= {name: row.uses_context.change, **_ends(name, row.uses_context.ci95)}
    if row.curve is not None:
        places = ("none" if at is None else str(at) for at in row.curve.breaks_at)
        of_row |= {"slope_nats_per_token": row.curve.slope, "breaks_at": " ".join(places)}
    if h["reference"] is not None:
        of_row[f"reference_{metric}"] = h["reference"]["mean"]
    for cell in row.cells:
        yield head | _cell(cell, metric) | of_row
    if not row.cells:
        yield head | {"note": "; ".join(row.notes)}
    for probe, probed in zip(comparison.probes, row.probes, strict=True):
        yield head | {"protocol": probe.name} | _cell(probed, "nats")


def _cell(cell: Cell, metric: str) -> Line:
    loss, change = f"loss_{metric}", f"change_{metric}"
    line: Line = {"multiple": cell.multiple, "window": cell.window, "seeds": cell.seeds}
    line |= {loss: cell.mean, f"{loss}_sd": cell.spread}
    line |= {change: cell.change, f"{change}_sd": cell.change_spread, **_ends(change, cell.change_ci95)}
    if cell.verdict is not None:
        line |= {"change_bpb": cell.verdict_change, **_ends("change_bpb", cell.verdict_ci95)}
    line["verdict"] = cell.verdict
    line |= _versus("best", cell.versus_best, metric) | _versus("baseline", cell.versus_baseline, metric)
    return line | {"targets": cell.targets, "documents": cell.documents, "note": cell.note}


def _versus(name: str, versus: Versus | None, metric: str) -> Line:
    """Return the columns `versus_best`, its word, and `versus_best_nats`, the difference."""
    if versus is None:
        return {}
    column = f"versus_{name}_{metric}"
    line: Line = {f"versus_{name}": versus.word, column: versus.difference, **_ends(column, versus.ci95)}
    return line | {f"versus_{name}_p": versus.p, f"versus_{name}_method": versus.method}


def _seed(row: Row, multiple: float) -> Line:
    """Return the columns of a row of one run; its intervals are over documents."""
    (member,) = row.members
    records = member.records
    if any("curve" in record for record in records):
        nats, bits = make_bin_cell(row, multiple), None
    else:
        nats, bits = make_cell(row, multiple, "nats"), make_cell(row, multiple, "bpb")
    line: Line = {"multiple": multiple, "window": nats.window, "loss_nats": nats.mean}
    line |= {"change_nats": nats.change, **_ends("change_nats", nats.change_ci95)}
    if bits is not None:
        line |= {"loss_bpb": bits.mean, "change_bpb": bits.change, **_ends("change_bpb", bits.change_ci95)}
    line |= {"verdict": nats.verdict, "targets": nats.targets, "documents": nats.documents}
    for key in ("corpus", "split", "stride", "checkpoint_step"):
        line[key] = records[0].get(key) if records else None
    return line | {"note": nats.note}


def _documents(record: Record, base: Record | None) -> Iterator[Line]:
    """Yield a line for each document; its change is against the run as trained at T on the same targets."""
    at_t = {} if base is None else {one["document"]: one["nats"] for one in _sums(base)}
    for one in _sums(record):
        nats, bits = one.pop("nats"), math.log(2) * one["bytes"]
        change = nats - at_t[one["document"]] if one["document"] in at_t else None
        yield {
            "multiple": record["multiple"],
            "window": record["window"],
            "group": None,
            **one,
            "loss_nats": nats / one["targets"],
            "loss_bpb": nats / bits if bits else None,
            "change_nats": None if change is None else change / one["targets"],
            "change_bpb": None if change is None or not bits else change / bits,
        }


def _sums(record: Record) -> list[dict[str, Any]]:
    """Return the sums of a record, a mapping for each document."""
    columns: Any = record["per_document"] or {}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _ends(name: str, interval: Sequence[float] | None) -> Line:
    low, high = interval or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def _aligned(lines: Iterable[Line]) -> list[Line]:
    """Return the lines with the keys of all, in the order of their first appearance."""
    found = list(lines)
    empty = dict.fromkeys(key for line in found for key in line)
    return [empty | line for line in found]


# --- a paper's table beside ours; `published.csv` beside this file has a row for each printed number

# The published length nearest to one of ours stands beside it up to this ratio: alibi-table2 goes from 3 to 5
# times 512 tokens, and 2512 is its length for our 4x. Each such pair is printed with both.
NEAR = math.log(1.25)
PROTOCOLS = (HEADLINE, "sliding", INFLATED)  # that score text in windows of a length, as the papers do


@dataclass
class Entry:
    """An encoding at one multiple of T, on both sides; losses and changes in nats per token."""

    encoding: str
    train_length: int  # tokens, of the paper
    published_length: int  # tokens
    published: float  # as printed: perplexity or nats, as `metric` of the paper says
    published_change: float | None  # against its T, of a perplexity that of the logarithm
    multiple: float | None  # of T, where measured; null where no length of ours is near
    measured: float | None  # mean over seeds
    measured_change: float | None
    measured_spread: float | None  # standard deviation of the change over seeds; null for one
    difference: float | None  # measured_change - published_change


@dataclass
class PaperComparison:
    """Both sides with their settings."""

    table: str
    published: dict[str, str]
    measured: dict[str, Any]  # the header of the comparison
    notes: list[str]
    rows: list[Entry]


@functools.cache
def published() -> tuple[dict[str, Any], ...]:
    """Return every published number, in the order of the file, with `nats` per token of its tokenizer."""
    kinds = {"train_length": int, "eval_length": int, "value": float}
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        row |= {name: kind(row[name]) for name, kind in kinds.items()}
        row["multiple"] = row["eval_length"] / row["train_length"]
        row["nats"] = math.log(row["value"]) if row["metric"] == "ppl" else row["value"]
    return tuple(rows)


def tables() -> list[str]:
    """Return the names of the tables."""
    return list(dict.fromkeys(row["table"] for row in published()))


def against(runs: Sequence[Run], table: str) -> PaperComparison:
    """Put the runs beside a published table, by the protocol that comes nearest to the paper's.

    Where no run was measured by that one, by the next of PROTOCOLS. Of the runs that can share a ranking, the
    most; a row with options of its own is not the paper's. Raises UserError for an unknown table, and as
    `compare_runs` does.
    """
    rows = [row for row in published() if row["table"] == table]
    if not rows:
        raise UserError("--against", table, "there is no such table", allowed=tables())
    nearest = next((name for name in PROTOCOLS if rows[0]["protocol"].startswith(name)), HEADLINE)
    there = protocols_of(runs)
    protocol = next((name for name in (nearest, *PROTOCOLS) if name in there), HEADLINE)
    comparison, *others = compare_runs(runs, CompareRequest(protocol))
    cells = {
        (row.label.split(" (beyond")[0], cell.multiple): cell for row in comparison.rows for cell in row.cells
    }
    names, labels = {row["encoding"] for row in rows}, {label for label, _ in cells}
    notes = []
    if not rows[0]["protocol"].startswith(protocol):
        notes.append(f"protocols differ: {rows[0]['protocol']} there, {protocol} here")
    if missing := sorted(names - labels):
        notes.append(f"published and not measured: {', '.join(missing)}")
    if others:
        notes.append(f"not compared: {len(others)} more tables of runs with other settings")
    keys = ("paper", "arxiv", "parameters", "corpus", "protocol", "metric")
    measured = [column.multiple for column in comparison.columns]
    entries = []
    bases = {(row["encoding"], row["train_length"]): row for row in rows if row["multiple"] == 1}
    for row in sorted(rows, key=lambda one: (one["train_length"], one["encoding"], one["eval_length"])):
        own = [one for one in rows if one["train_length"] == row["train_length"]]
        multiple = _place(row["multiple"], [one["multiple"] for one in own], measured)
        cell = cells.get((row["encoding"], multiple or 0))
        base = bases.get((row["encoding"], row["train_length"]))
        change = None if base is None or base is row else row["nats"] - base["nats"]
        ours = None if cell is None or multiple == 1 else cell.change
        entries.append(
            Entry(
                encoding=row["encoding"],
                train_length=row["train_length"],
                published_length=row["eval_length"],
                published=row["value"],
                published_change=change,
                multiple=multiple,
                measured=None if cell is None else cell.mean,
                measured_change=ours,
                measured_spread=None if cell is None or ours is None else cell.change_spread,
                difference=None if change is None or ours is None else ours - change,
            )
        )
    theirs = {key: " | ".join(dict.fromkeys(row[key] for row in rows)) for key in keys}
    return PaperComparison(table, theirs, comparison.header, notes, entries)


def _place(multiple: float, published: Sequence[float], measured: Sequence[float]) -> float | None:
    """Return the measured multiple of T beside which a published one stands: each the other's nearest."""

    def nearest(of: float, among: Sequence[float]) -> float:
        return min(among, key=lambda one: abs(math.log(one / of)), default=math.inf)

    place = nearest(multiple, measured)
    both = nearest(place, published) == multiple if measured else False
    return place if both and abs(math.log(place / multiple)) <= NEAR else None
