"""What a protocol measures beside the loss: its numbers in a record, of a row, and of a whole table."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from posenc.results.beside import keys_beside, module_beside
from posenc.results.cells import Cell
from posenc.results.measurements import Measurement, Member

RecordT = TypeVar("RecordT")  # what a record has
RowT = TypeVar("RowT")  # what a row has
TableT = TypeVar("TableT")  # what a table says of all its rows; None for most protocols

LAST = 1000  # behind all that say their order
# Of the values that are to be recalled, or of the answers of a task, so that both tables mean the same.
LEARNED = 90.0  # per cent; a seed with less within T did not learn
ROUNDING = 1e-9  # per cent; as a float, a share of 0.9 may be less than 90% by this much


@dataclass(frozen=True, kw_only=True)
class TableBeside:
    """The rows of a table, with what their runs measured by the protocol beside its losses."""

    rows: Sequence[Sequence[Member]]  # the seeds of each row; a seed that was not measured has no numbers
    cells: Sequence[Sequence[Cell]]  # the losses of each row
    multiples: tuple[float, ...]  # of T: the columns of the losses
    left_out: Collection[float]  # multiples of T that have a loss and no column
    cells_left_out: Sequence[Sequence[Cell]]  # the losses of each row at these multiples, without ranks
    recall_level: float  # per cent, the option --recall-level


class HasNumbersBeside:
    """A row or a comparison: it holds the numbers beside the loss by their keys.

    In a notebook they are attributes, too: `row.memory`. The code reads them by `MEMORY.of(row)`, which has a
    type. mypy does not see the attributes, so that it still finds a misspelt field.
    """

    beside: Mapping[str, Any]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # While an object is copied or unpickled, it has no fields yet.
            beside = vars(self).get("beside", {})
            if name not in beside:
                raise AttributeError(f"{type(self).__name__} has no {name!r}")
            return beside[name]


@dataclass(frozen=True, kw_only=True)
class NumbersBeside(Generic[RecordT, RowT, TableT]):
    """The numbers of one protocol beside the loss, and how a table gets them."""

    protocol: str  # its name; the name of the file, with dashes
    rows_of: Callable[[TableBeside], Sequence[RowT | None]]  # the value of each row; None without a number
    # what a table says of all its rows, None if no row has a number
    whole_of: Callable[[TableBeside], TableT | None] | None = None
    is_beside_losses: bool = True  # whether the headline's table has it, too; else only the protocol's own
    sort_number: Callable[[RowT], float | None] | None = None  # by which --sort PROTOCOL orders rows
    order: int = LAST  # in JSON and in the pages; protocols of the same order are sorted by name

    @property
    def key(self) -> str:
        """Return its key in records, in rows and in the JSON."""
        return self.protocol.replace("-", "_")

    def measured(self, measurement: Measurement) -> RecordT | None:
        """Return what a measurement has of it."""
        numbers: RecordT | None = measurement.beside.get(self.key)
        return numbers

    def of(self, row: HasNumbersBeside) -> RowT | None:
        """Return what a row has of it."""
        value: RowT | None = row.beside.get(self.key)
        return value

    def of_table(self, comparison: HasNumbersBeside) -> TableT | None:
        """Return what a table says of all its rows."""
        value: TableT | None = comparison.beside.get(self.key)
        return value


def by_rising_window(members: Sequence[Member]) -> list[Measurement]:
    """Return the measurements of all seeds, shorter windows first."""
    measurements = [measurement for member in members for measurement in member.by_multiple.values()]
    return sorted(measurements, key=lambda measurement: measurement.multiple)


def by_window(
    members: Sequence[Member], numbers: NumbersBeside[RecordT, Any, Any]
) -> list[list[Measurement]]:
    """Return the seeds' measurements that have the numbers, a list for each window, shorter windows first."""
    of_windows: dict[int, list[Measurement]] = defaultdict(list)
    for member in members:
        for measurement in member.measurements:
            # A record with a note instead of a number, such as `oom`, has nothing to average.
            if numbers.measured(measurement) is not None and measurement.nats is not None:
                of_windows[measurement.window].append(measurement)
    return [measurements for _, measurements in sorted(of_windows.items())]


@functools.cache
def all_numbers_beside() -> tuple[NumbersBeside[Any, Any, Any], ...]:
    """Return the numbers of all protocols, in their order."""
    numbers = []
    for key in keys_beside():
        values = vars(module_beside(key)).values()
        # A module also holds the names that it imports, so each file gives the numbers of its own key alone.
        numbers += [value for value in values if isinstance(value, NumbersBeside) and value.key == key]
    return tuple(sorted(numbers, key=lambda of_protocol: (of_protocol.order, of_protocol.key)))
