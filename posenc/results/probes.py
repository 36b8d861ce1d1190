"""Retrieval and copying beside the loss, which it cannot see; never in a ranking of the loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posenc.results.cells import Cell, make_cell
from posenc.results.columns import single
from posenc.results.load import Run
from posenc.results.records import HEADLINE, UNIT
from posenc.results.rows import Group, Member
from posenc.results.selection import Selected, select

PROBES = ("induction", "far-copy")


@dataclass
class ProbeColumn:
    """A probe at the longest window that it was measured at in all rows (that it was measured in at all)."""

    protocol: str
    multiple: float  # of T
    window: int | None  # tokens
    unit: str  # of the losses, whatever the comparison's metric
    same_targets: bool  # of all rows


@dataclass
class Probe:
    """A row's numbers of a probe."""

    cell: Cell
    at_train_length: float | None  # the loss at W = T, mean over seeds


def probe_columns(
    runs: Sequence[Run], groups: Sequence[Group], protocol: str
) -> tuple[list[ProbeColumn], list[list[Probe]]]:
    """The columns, and for each group its probes in their order; beside the headline protocol alone."""
    columns: list[ProbeColumn] = []
    by_group: list[list[Probe]] = [[] for _ in groups]
    shown = {id(member.run) for group in groups for member in group.members}
    steps = {id(member.run): step for group in groups for member in group.members if (step := _step(member))}
    for name in PROBES if protocol == HEADLINE else ():
        selected = {id(one.run): one for one in select(runs, name, steps) if id(one.run) in shown}
        records = [record for one in selected.values() for record in one.records]
        multiple = _longest(selected, groups)
        if multiple is None:
            continue
        hashes, window, unit = set(), set(), {record["unit"] for record in records}
        for group, probes in zip(groups, by_group, strict=True):
            members = [Member(member.run, selected.get(id(member.run))) for member in group.members]
            probed = dataclasses.replace(group, members=members)
            cell = make_cell(probed, multiple, "nats")
            hashes |= {cell.targets_hash} if cell.seeds else set()
            window |= {cell.window} if cell.window is not None else set()
            probes.append(Probe(cell, make_cell(probed, 1.0, "nats").mean))
        columns.append(ProbeColumn(name, multiple, single(window), single(unit) or UNIT, len(hashes) <= 1))
    return columns, by_group


def _step(member: Member) -> int | None:
    """The checkpoint whose loss is shown: a probe of another one is of another model."""
    return member.selected.records[0]["checkpoint_step"] if member.selected else None


def _longest(selected: Mapping[int, Selected], groups: Sequence[Group]) -> float | None:
    """The longest window of all rows that were probed; where they share none, of any. None without one."""
    windows = []
    for group in groups:
        found = (selected.get(id(member.run)) for member in group.members)
        windows.append({multiple for one in found if one for multiple in one.cells.get(group.extend, ())})
    probed = [one for one in windows if one]
    if not probed:
        return None
    return max(set.intersection(*probed) or set.union(*probed))
