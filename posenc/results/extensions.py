"""Test-time extensions as columns beside the encoding as trained, instead of rows of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posenc.results.cells import Cell, make_cell
from posenc.results.curves import make_bin_cell
from posenc.results.records import Metric
from posenc.results.rows import Group, knobs_of


@dataclass
class ExtensionColumn:
    """An extension with its knobs, at the longest window that is shown."""

    name: str  # `yarn`, or with knobs that are not the usual ones `window window=32`
    multiple: float  # of T


def fold(groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """The rows, and the extended ones that are columns of a row: those whose runs have one as trained."""
    plain = [group for group in groups if group.extend is None]
    folded = [group for group in groups if group.extend is not None and any(_of(group, one) for one in plain)]
    return [group for group in groups if not any(group is one for one in folded)], folded


def extension_columns(
    groups: Sequence[Group], folded: Sequence[Group], multiples: Sequence[float], metric: Metric, curves: bool
) -> tuple[list[ExtensionColumn], list[list[Cell | None]]]:
    """The columns, and for each group its cells in their order; None where it was not extended so."""
    names = list(dict.fromkeys(_name(group) for group in folded))
    longest = max(multiples, default=1.0)
    columns = [ExtensionColumn(name, longest) for name in names]
    by_group: list[list[Cell | None]] = []
    for group in groups:
        own = {_name(one): one for one in folded if _of(one, group)} if group.extend is None else {}
        by_group.append(
            [_cell(own[name], longest, metric, curves) if name in own else None for name in names]
        )
    return columns, by_group


def notes_of(group: Group, folded: Sequence[Group]) -> list[str]:
    """What is missing of the extensions beside a row: the seeds that they were not measured in."""
    own = [one for one in folded if _of(one, group)] if group.extend is None else []
    notes = [(_name(one), note) for one in own for note in one.notes if note not in group.notes]
    return [f"+{name} {note}" for name, note in notes]


def _cell(group: Group, multiple: float, metric: Metric, curves: bool) -> Cell:
    return make_bin_cell(group, multiple) if curves else make_cell(group, multiple, metric)


def _of(extended: Group, group: Group) -> bool:
    """Whether these are the same runs, extended."""
    return (extended.encoding, extended.settings, extended.mixed) == (
        group.encoding,
        group.settings,
        group.mixed,
    )


def _name(group: Group) -> str:
    return " ".join([str(group.extend_name), *knobs_of(group)])
