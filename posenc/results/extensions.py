"""Test-time extensions as columns beside the encoding as trained, instead of rows of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posenc.results.cells import Cell, make_cell
from posenc.results.records import Metric
from posenc.results.rows import Group


@dataclass
class ExtensionColumn:
    """An extension with its knobs, at the longest window that is shown."""

    name: str  # `yarn`, or with knobs that are not the usual ones `window window=32`
    multiple: float  # of T


def extension_columns(
    groups: Sequence[Group], folded: Sequence[Group], multiples: Sequence[float], metric: Metric
) -> tuple[list[ExtensionColumn], list[list[Cell | None]]]:
    """The columns, and for each group its cells in their order; None where it was not extended so.

    `folded` are the rows of extensions, which belong to the group of the same runs as trained.
    """
    names = list(dict.fromkeys(_name(group) for group in folded))
    longest = max(multiples, default=1.0)
    columns = [ExtensionColumn(name, longest) for name in names]
    by_group: list[list[Cell | None]] = []
    for group in groups:
        own = {_name(one): one for one in folded if _of(one, group)}
        by_group.append([make_cell(own[name], longest, metric) if name in own else None for name in names])
    return columns, by_group


def _of(extended: Group, group: Group) -> bool:
    return (extended.encoding, extended.settings, extended.mixed) == (
        group.encoding,
        group.settings,
        group.mixed,
    )


def _name(group: Group) -> str:
    """The part of the label behind the encoding's name and options."""
    return group.label.removeprefix(group.encoding).removeprefix("+")
