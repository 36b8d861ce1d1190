"""A paper's table beside ours. `published.csv` beside this file has a row for each printed number."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError
from posenc.results.comparison import CompareRequest, compare_runs, protocols_of
from posenc.results.load import Run
from posenc.results.schema import HEADLINE, INFLATED

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
