"""One cell of a comparison: the mean over seeds, the change against W = T, or why there is no number."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from posenc.results.load import Run
from posenc.results.numbers import HUGE
from posenc.results.records import Metric, Record, perplexity
from posenc.results.rows import Group, Member
from posenc.results.statistics import mean_and_spread, paired_difference

NOT_MEASURED = "not measured"
# Reasons that have nothing to do with how good the encoding is: the other seeds still stand for the row.
INNOCENT = {NOT_MEASURED, "running", "interrupted", "failed", "no results", "damaged", "unknown"}


@dataclass
class Cell:
    """Numbers in the comparison's metric; null where there are none, and then `note` says why."""

    multiple: float  # of T
    window: int | None  # tokens
    mean: float | None = None  # over seeds
    spread: float | None = None  # standard deviation over seeds; null for one seed
    change: float | None = None  # against the run as trained at W = T on the same targets, mean over seeds
    change_spread: float | None = None  # standard deviation of the paired differences over seeds
    change_ci95: list[float] | None = None  # over documents, for one seed: says nothing of other seeds
    seeds: int = 0  # that the mean is of
    note: str | None = None
    best: bool = False
    targets_hash: str | None = None
    rankable: bool = False  # no seed is left out for being bad


def make_cell(group: Group, multiple: float, metric: Metric) -> Cell:
    """The cell of a row at one window length."""
    values, changes, reasons = [], [], Counter[str]()
    hashes, intervals, windows = set(), [], set()
    for member in group.members:
        record = record_of(member, group.extend, multiple)
        value = None if record is None else value_of(record, metric)
        if record is not None:
            windows.add(record["window"])
        if record is None or value is None:
            reasons[_reason(member.run, record)] += 1
            continue
        values.append(value)
        hashes.add(record["targets_hash"])
        base = record_of(member, None, 1.0)
        if base is not None and base["targets_hash"] == record["targets_hash"]:
            reference = value_of(base, metric)
            if reference is not None and math.isfinite(value - reference):
                changes.append(value - reference)
                intervals.append(_interval(record, base, metric))
    cell = Cell(multiple, windows.pop() if len(windows) == 1 else None, seeds=len(values))
    cell.note = _note(reasons, len(values))
    cell.rankable = bool(values) and set(reasons) <= INNOCENT
    cell.targets_hash = hashes.pop() if len(hashes) == 1 else None
    if values:
        cell.mean, cell.spread = mean_and_spread(values)
    if changes:
        cell.change, cell.change_spread = mean_and_spread(changes)
    if len(values) == len(intervals) == 1:
        cell.change_ci95 = intervals[0]
    return cell


def record_of(member: Member, extend: str | None, multiple: float) -> Record | None:
    """The member's record at this window length, if it has one."""
    return None if member.selected is None else member.selected.cells.get(extend, {}).get(multiple)


def value_of(record: Record, metric: Metric) -> float | None:
    """The number of a record; None where it has none or has a note. Perplexity beyond 1e30 is infinite."""
    if record["note"] is not None or record["nats"] is None:
        return None
    if metric == "ppl":
        ppl = perplexity(record["nats"])
        return ppl if ppl <= HUGE else math.inf  # printed as >1e30; means and squares of more would overflow
    return record[metric]


def short(note: str) -> str:
    """The first words of a note, as they fit into a cell: `oom`, `n/a`, `refused`."""
    found = re.match(r"[A-Za-z/]+", note)
    return found.group()[:12] if found else "no number"


def _reason(run: Run, record: Record | None) -> str:
    if record is not None:
        return short(record["note"]) if record["note"] is not None else "no bytes"
    if run.problem is None and run.state == "finished":
        return "no results" if run.facts is None else NOT_MEASURED
    return run.state


def _note(reasons: Counter[str], have: int) -> str | None:
    if not reasons:
        return None
    if not have:
        return ", ".join(sorted(reasons))
    total = have + sum(reasons.values())
    return ", ".join(f"{count} of {total} {reason}" for reason, count in sorted(reasons.items()))


def _interval(record: Record, base: Record, metric: Metric) -> list[float] | None:
    ours, theirs = record["per_document"], base["per_document"]
    if metric == "ppl" or record is base or ours is None or theirs is None:
        return None
    per: Literal["targets", "bytes"] = "targets" if metric == "nats" else "bytes"
    try:
        _, interval = paired_difference(ours, theirs, per)
    except (
        ValueError
    ):  # the hash says the same targets, the counts do not: no interval rather than a wrong one
        return None
    return None if interval is None else list(interval)
