"""The columns of a comparison: window lengths, or the bins of curves over positions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from posenc.results.ranking import Pair
from posenc.results.records import Curve, Record
from posenc.results.selection import Selected

SHORTEST_SHOWN = 1 / 8  # of T: a table shows the bins of a curve that end at powers of two from here


@dataclass
class Column:
    """A window length, or a bin of positions. Counts are null where the rows differ in them."""

    multiple: float  # of T; of a bin its last position
    window: int | None  # tokens; of a bin its last position
    targets: int | None
    documents: int | None
    shown: bool = True  # in tables; programs get all
    pairs: list[Pair] = field(default_factory=list)  # of rows that may be ranked


def window_columns(selected: Sequence[Selected]) -> list[Column]:
    """A column for each window length that any run was measured at."""
    by_multiple: dict[float, list[Any]] = {}
    for one in selected:
        for cells in one.cells.values():
            for multiple, record in cells.items():
                by_multiple.setdefault(multiple, []).append(record)
    columns = []
    for multiple, records in sorted(by_multiple.items()):
        scored = [record for record in records if record["targets"]]
        counts = [single({record[key] for record in scored}) for key in ("targets", "documents")]
        columns.append(Column(multiple, single({record["window"] for record in records}), *counts))
    return columns


def window_multiples(selected: Sequence[Selected]) -> list[float]:
    """The window lengths that any run was measured at, as multiples of T."""
    return sorted({multiple for one in selected for cells in one.cells.values() for multiple in cells})


def bin_columns(selected: Sequence[Selected]) -> list[Column]:
    """A column for each bin of the runs' curves; those of powers of two and the last one are shown."""
    found: dict[float, set[tuple[int, int, int]]] = {}
    for one in selected:
        for record in one.records:
            for multiple, end, targets in bins_of(record):
                found.setdefault(multiple, set()).add((end, targets, record["documents"]))
    columns = []
    for multiple, facts in sorted(found.items()):
        end, targets, documents = (single({fact[i] for fact in facts}) for i in range(3))
        shown = multiple == max(found) or (multiple >= SHORTEST_SHOWN and _is_power_of_two(multiple))
        columns.append(Column(multiple, end, targets, documents, shown))
    return columns


def bins_of(record: Record) -> list[tuple[float, int, int]]:
    """Of each bin of a record's curve: its end as a multiple of T, its last position, its targets."""
    curve: Curve | None = record.get("curve")
    if curve is None:
        return []
    ends = [stop - 1 for _, stop in pairwise(curve["edges"])]
    train_length = record["window"] / record["multiple"]
    return [
        (round(end / train_length, 6), end, targets)
        for end, targets in zip(ends, curve["targets"], strict=True)
    ]


def single(values: Iterable[Any]) -> Any:
    """The one value that all of them are; None where they differ or there is none."""
    distinct = set(values)
    return next(iter(distinct)) if len(distinct) == 1 else None


def _is_power_of_two(multiple: float) -> bool:
    """Whether a bin ends at T times a power of two, up to the rounding to whole positions."""
    octave = math.log2(multiple)
    return abs(octave - round(octave)) < 0.02
