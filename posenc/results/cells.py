"""One cell of a comparison: the mean over seeds, the change against W = T, or why there is no number."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.results.baseline import Against
from posenc.results.load import Run
from posenc.results.numbers import HUGE
from posenc.results.ranking import Mark
from posenc.results.records import Metric, Record, perplexity
from posenc.results.rows import Group, Member
from posenc.results.statistics import Per, difference, mean_and_spread, same_targets
from posenc.results.verdicts import CONFIDENCE, SAME_WORD, verdict

NOT_MEASURED = "not measured"
# Reasons that have nothing to do with how good the encoding is: the other seeds still stand for the row.
INNOCENT = {NOT_MEASURED, "running", "dead", "interrupted", "failed", "no results", "damaged", "unknown"}
Scores = tuple[Mapping[str, Any], Mapping[str, Any]]  # per_document of a seed here, and at its crop line


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
    verdict: str | None = None  # on the change; null where a seed is missing for being bad
    verdict_change: float | None = None  # the change in bits per byte, whatever the metric
    verdict_ci95: list[float] | None = None  # of it, over seeds and documents (one seed: documents)
    mark: Mark | None = None  # what stands between this row and the lowest of the column
    targets_hash: str | None = None
    targets: int | None = None  # that were scored in each seed; null where the seeds differ
    documents: int | None = None  # that they are in
    rankable: bool = False  # no seed is left out for being bad
    against: Against | None = None  # this row minus the comparison's baseline


def make_cell(group: Group, multiple: float, metric: Metric) -> Cell:
    """The cell of a row at one window length."""
    values, changes, based, reasons = [], [], 0, Counter[str]()
    hashes, windows, counts = set(), set(), set()
    scores: list[Scores] = []
    for member in group.members:
        record = record_of(member, group.extend, multiple)
        value = None if record is None else value_of(record, metric)
        if record is not None:
            windows.add(record["window"])
        if record is None or value is None:
            reasons[reason_of(member.run, record)] += 1
            continue
        values.append(value)
        hashes.add(record["targets_hash"])
        counts.add((record["targets"], record["documents"]))
        base = record_of(member, None, 1.0)
        if base is not None and base["targets_hash"] == record["targets_hash"]:
            reference = value_of(base, metric)
            based += reference is not None
            if reference is not None and math.isfinite(value - reference):  # perplexities may be infinite
                changes.append(value - reference)
            scores += _scores(record, base)
    cell = Cell(multiple, windows.pop() if len(windows) == 1 else None, seeds=len(values))
    cell.note = note_of(reasons, len(values))
    cell.rankable = bool(values) and set(reasons) <= INNOCENT
    cell.targets_hash = hashes.pop() if len(hashes) == 1 else None
    cell.targets, cell.documents = counts.pop() if len(counts) == 1 else (None, None)
    if values:
        cell.mean, cell.spread = mean_and_spread(values)
    if 0 < based < len(values):  # a change of some seeds beside a loss of all would not be told
        cell.note = ", ".join(filter(None, [cell.note, f"{based} of {len(values)} with 1x"]))
    elif changes and len(changes) == len(values):
        cell.change, cell.change_spread = mean_and_spread(changes)
    if len(values) == len(changes) == len(scores) == 1 and metric != "ppl":
        cell.change_ci95 = _interval(scores, "targets" if metric == "nats" else "bytes")
    if cell.rankable and len(scores) == len(values):
        _judge(cell, scores)
    return cell


def samples_of(group: Group, multiple: float) -> dict[int, Mapping[str, Any]]:
    """`per_document` of each seed of a row at one window length."""
    found: dict[int, Mapping[str, Any]] = {}
    for member in group.members:
        record = record_of(member, group.extend, multiple)
        if record is not None and record["per_document"] is not None and member.run.seed is not None:
            found[member.run.seed] = record["per_document"]
    return found


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


def reason_of(run: Run, record: Record | None) -> str:
    """Why a seed has no number."""
    if record is not None:
        return short(record["note"]) if record["note"] is not None else "no bytes"
    if run.problem is None and run.state == "finished":
        return "no results" if run.facts is None else NOT_MEASURED
    return run.state


def note_of(reasons: Counter[str], have: int) -> str | None:
    """The reasons in one text; with their share of the seeds where other seeds have a number."""
    if not reasons:
        return None
    if not have:
        return ", ".join(sorted(reasons))
    total = have + sum(reasons.values())
    return ", ".join(f"{count} of {total} {reason}" for reason, count in sorted(reasons.items()))


def short(note: str) -> str:
    """The first words of a note, as they fit into a cell: `oom`, `n/a`, `refused`."""
    found = re.match(r"[A-Za-z/]+", note)
    return found.group()[:12] if found else "no number"


def _scores(record: Record, base: Record) -> list[Scores]:
    """Both sides by document; none where the hash says the same targets and the counts do not."""
    ours, theirs = record["per_document"], base["per_document"]
    if record is base or ours is None or theirs is None or not same_targets(ours, theirs):
        return []
    return [(ours, theirs)]


def _interval(scores: Sequence[Scores], per: Per) -> list[float] | None:
    try:
        interval = difference(scores, per).interval(CONFIDENCE)
    except ValueError:  # no bytes
        return None
    return None if interval is None else list(interval)


def _judge(cell: Cell, scores: Sequence[Scores]) -> None:
    """The verdict on the change, where there are bytes to measure it by."""
    try:
        change = difference(scores, "bytes")
    except ValueError:
        return
    interval = change.interval(CONFIDENCE)
    same = all(ours["nats"] == theirs["nats"] for ours, theirs in scores)  # one measurement, told twice
    cell.verdict, cell.verdict_change = SAME_WORD if same else verdict(change), change.value
    cell.verdict_ci95 = None if interval is None else list(interval)
