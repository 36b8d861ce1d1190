"""The numbers of single runs: the cells of each seed of a row, before any mean is taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from posenc.results.cells import Cell, make_cell
from posenc.results.comparison import Comparison
from posenc.results.measurements import Member
from posenc.results.rows import Row


@dataclass(frozen=True)
class SeedCell:
    """The numbers of one run of a row at one window length, or in one bin of its curve.

    Intervals are over documents.
    """

    row: Row
    member: Member
    nats: Cell
    bits: Cell | None  # the same numbers in bits per byte; None for a curve, which has nats per token only


def seed_cells(comparison: Comparison) -> Iterator[SeedCell]:
    """Yield the cells of each run of each row, by the columns of the table."""
    for row in comparison.rows:
        for member in row.members:
            has_curve = any(measurement.curve is not None for measurement in member.measurements)
            for column in comparison.columns:
                # Cells of a single run are made by the same function as those of rows, so that a seed's
                # change and verdict follow the same rules as its row's.
                nats = make_cell([member], column.multiple, "nats")
                bits = None if has_curve else make_cell([member], column.multiple, "bpb")
                yield SeedCell(row, member, nats, bits)
