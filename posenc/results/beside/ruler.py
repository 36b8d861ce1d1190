"""Values found in the needle tasks of RULER (the protocol `ruler`), for each row, mean over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import MinLen
from pydantic import AfterValidator
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from posenc.results.beside.base import NumbersBeside, TableBeside
from posenc.results.beside.found_values import FoundValues, found_values
from posenc.results.checks import check_aligned, check_at_most
from posenc.results.measurements import Measurement, Member
from posenc.results.plain import FIELDS_IN_JSON
from posenc.results.statistics.documents import Count, Positive
from posenc.results.statistics.proportions import SeedFacts

# --- in a record


class RulerCounts(TypedDict):
    """Values found in windows of one length, lists with one element for each task of RULER."""

    task: Annotated[list[str], MinLen(1)]
    samples: list[Positive]
    answers: list[Positive]  # values that all samples ask for
    correct: list[Count]  # values that stand in what the model wrote


def _check(ruler: RulerCounts) -> RulerCounts:
    """Return the values if the numbers agree with each other. Raises ValueError."""
    check_aligned(ruler["task"], ruler["samples"], ruler["answers"], ruler["correct"])
    check_at_most(ruler["correct"], ruler["answers"])
    return ruler


RECORD = Annotated[RulerCounts, AfterValidator(_check)]


# --- in a row


@dataclass(frozen=True, kw_only=True)
class RulerCell:
    """The values that a row found in a task of RULER, in windows of one length."""

    task: str  # its name in RULER
    found: FoundValues = field(metadata=FIELDS_IN_JSON)


def _rows_of(table: TableBeside) -> list[tuple[RulerCell, ...] | None]:
    return [_ruler_of(members) for members in table.rows]


# Numbers beside the loss are what a protocol measures in addition to it. These have a table of their own and
# no column in tables of losses. It comes after the table of `needle`.
RULER: NumbersBeside[RulerCounts, tuple[RulerCell, ...], None] = NumbersBeside(
    protocol="ruler", rows_of=_rows_of, is_beside_losses=False, order=40
)


def _ruler_of(members: Sequence[Member]) -> tuple[RulerCell, ...] | None:
    """Return what a row found; None where it was not measured."""
    found_in_tasks = found_values(members, _found_by_seed)
    cells = [RulerCell(task=task, found=found) for task, found in found_in_tasks]
    return tuple(cells) or None


def _found_by_seed(measurement: Measurement) -> list[tuple[str, SeedFacts]]:
    """Return what a seed found in windows of one length, by task."""
    ruler = RULER.measured(measurement)
    if ruler is None:
        return []
    facts_by_task = []
    for index, task in enumerate(ruler["task"]):
        # A sample may ask for several values, which are found or missed together. So the interval counts
        # samples.
        facts = SeedFacts(
            correct=ruler["correct"][index],
            answers=ruler["answers"][index],
            samples=ruler["samples"][index],
        )
        facts_by_task.append((task, facts))
    return facts_by_task
