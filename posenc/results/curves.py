"""The loss by position in a comparison: a cell for each bin, the slope past T, where it breaks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from posenc.results.cells import Cell, note_of, reason_of
from posenc.results.columns import bins_of
from posenc.results.records import BREAK, Record
from posenc.results.rows import Group, Member
from posenc.results.selection import Selected
from posenc.results.statistics import mean_and_spread


@dataclass
class CurveSummary:
    """A row's curves past T. In nats per token, and tokens."""

    train_length: int  # T
    slope: float | None  # nats per token of loss, for each token past T; mean over seeds
    slope_spread: float | None  # standard deviation over seeds
    slope_ci95: list[float] | None  # over documents, for one seed
    breaks_at: list[int | None]  # of each seed: the first position that is surely 0.1 nats above T; or none
    holds: list[bool]  # of each seed: whether no position past T can be 0.1 nats above T; else it is unclear


def has_curves(selected: list[Selected]) -> bool:
    """Whether these are records of curves."""
    return any(record.get("curve") is not None for one in selected for record in one.records)


def make_bin_cell(group: Group, multiple: float) -> Cell:
    """The cell of a bin that ends at this multiple of T, in nats; its change: the rise over that at T."""
    values, rises, intervals, reasons = [], [], [], Counter[str]()
    ends, hashes, counts = set(), set(), set()
    for member in group.members:
        record = curve_record(member, group.extend)
        places = [] if record is None else [one[0] for one in bins_of(record)]
        if record is None or multiple not in places:
            reasons[reason_of(member.run, record if record and record["note"] else None)] += 1
            continue
        curve, i = record["curve"], places.index(multiple)
        values.append(curve["nats"][i])
        rises.append(curve["rise"][i])
        intervals.append(curve["rise_ci95"][i])
        ends.add(curve["edges"][i + 1] - 1)
        hashes.add(record["targets_hash"])
        counts.add((curve["targets"][i], record["documents"]))
    cell = Cell(multiple, ends.pop() if len(ends) == 1 else None, seeds=len(values))
    cell.note = note_of(reasons, len(values))
    cell.targets_hash = hashes.pop() if len(hashes) == 1 else None
    cell.targets, cell.documents = counts.pop() if len(counts) == 1 else (None, None)
    if values:
        cell.mean, cell.spread = mean_and_spread(values)
        cell.change, cell.change_spread = mean_and_spread(rises)
        cell.change_ci95 = intervals[0] if len(values) == 1 else None
    return cell


def summary(group: Group) -> CurveSummary | None:
    """Of the row's curves; None without one."""
    records = [curve_record(member, group.extend) for member in group.members]
    found = [record for record in records if record is not None and "curve" in record]
    if not found:
        return None
    curves = [record["curve"] for record in found]
    slopes = [curve["slope"] for curve in curves if curve["slope"] is not None]
    slope, spread = mean_and_spread(slopes) if slopes else (None, None)
    return CurveSummary(
        train_length=round(found[0]["window"] / found[0]["multiple"]),
        slope=slope,
        slope_spread=spread,
        slope_ci95=curves[0]["slope_ci95"] if len(curves) == 1 else None,
        breaks_at=[curve["breaks_at"] for curve in curves],
        holds=[_holds(record) for record in found],
    )


def _holds(record: Record) -> bool:
    """Whether there are bins past T, and each has its whole interval below a break."""
    curve, length = record["curve"], record["window"] / record["multiple"]
    past = [
        interval
        for start, interval in zip(curve["edges"][:-1], curve["rise_ci95"], strict=True)
        if start > length
    ]
    return bool(past) and all(interval is not None and interval[1] <= BREAK for interval in past)


def curve_record(member: Member, extend: str | None) -> Record | None:
    """The member's record of the longest context."""
    cells = member.selected.cells.get(extend, {}) if member.selected else {}
    return cells[max(cells)] if cells else None
