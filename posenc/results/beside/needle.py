"""Facts found in a text (the protocol `needle`), for each row, mean over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NotRequired

from annotated_types import Ge, Le, MinLen
from pydantic import AfterValidator
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from posenc.results.beside.base import NumbersBeside, TableBeside
from posenc.results.beside.found_values import FoundValues, found_values
from posenc.results.checks import check_aligned, check_at_most
from posenc.results.measurements import Measurement, Member
from posenc.results.plain import FIELDS_IN_JSON
from posenc.results.statistics.documents import Count, Number, Positive
from posenc.results.statistics.proportions import SeedFacts

# --- in a record


class NeedleCounts(TypedDict):
    """Facts found in windows of one length, lists with one element for each depth and number of keys."""

    depth: Annotated[list[Annotated[float, Ge(0), Le(1)]], MinLen(1)]  # of the asked sentence in the text
    keys: list[Positive]  # sentences in each window
    answers: list[Positive]  # values that were asked for
    correct: list[Count]  # values whose tokens all are the first choice
    nats: list[Number]  # mean, per token of a value
    windows: NotRequired[list[Positive]]  # that were asked; in older records each answer is of a window


def _check(needle: NeedleCounts) -> NeedleCounts:
    """Return the needles if the numbers agree with each other. Raises ValueError."""
    windows = windows_asked(needle)
    check_aligned(
        needle["depth"], needle["keys"], needle["answers"], needle["correct"], needle["nats"], windows
    )
    check_at_most(needle["correct"], needle["answers"])
    return needle


def windows_asked(needle: NeedleCounts) -> list[int]:
    """Return in how many windows each question was asked. Older records do not have it."""
    # Such a record counts each answer as a window of its own, which is right for a single query.
    return needle.get("windows", needle["answers"])


RECORD = Annotated[NeedleCounts, AfterValidator(_check)]


# --- in a row


@dataclass(frozen=True, kw_only=True)
class NeedleCell:
    """The facts that a row found at a depth in windows of one length."""

    keys: int  # sentences in each window
    depth: float  # of the asked one: 0 is the beginning of the text, 1 its end
    found: FoundValues = field(metadata=FIELDS_IN_JSON)


def _rows_of(table: TableBeside) -> list[tuple[NeedleCell, ...] | None]:
    return [_needles_of(members) for members in table.rows]


# Numbers beside the loss are what a protocol measures in addition to it. These have a table of their own and
# no column in tables of losses. It comes after the table of `exact`.
NEEDLE: NumbersBeside[NeedleCounts, tuple[NeedleCell, ...], None] = NumbersBeside(
    protocol="needle", rows_of=_rows_of, is_beside_losses=False, order=30
)


def _needles_of(members: Sequence[Member]) -> tuple[NeedleCell, ...] | None:
    """Return what a row found; None if it was not measured."""
    found_at_places = found_values(members, _found_by_seed)
    cells = [NeedleCell(keys=keys, depth=depth, found=found) for (keys, depth), found in found_at_places]
    return tuple(cells) or None


def _found_by_seed(measurement: Measurement) -> list[tuple[tuple[int, float], SeedFacts]]:
    """Return what a seed found in windows of one length, by number of keys and depth."""
    needle = NEEDLE.measured(measurement)
    if needle is None:
        return []
    windows_of_questions = windows_asked(needle)
    facts_by_place = []
    for index, depth in enumerate(needle["depth"]):
        # The answers of a window stand in the same text and are found or missed together. So the interval
        # counts windows.
        facts = SeedFacts(
            correct=needle["correct"][index],
            answers=needle["answers"][index],
            samples=windows_of_questions[index],
        )
        facts_by_place.append(((needle["keys"][index], depth), facts))
    return facts_by_place
