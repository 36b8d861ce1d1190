"""Values found in the needle tasks of RULER (the protocol `ruler`), for each row, mean over seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import MinLen
from pydantic import AfterValidator
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from posenc.results.beside.base import NumbersBeside, TableBeside, by_rising_window
from posenc.results.checks import check_aligned
from posenc.results.measurements import Member
from posenc.results.statistics.documents import Count, Positive
from posenc.results.statistics.intervals import Interval
from posenc.results.statistics.proportions import FactCount, SeedFacts

# --- in a record


class RulerCounts(TypedDict):
    """Values found in windows of one length, lists with one element for each task of RULER."""

    task: Annotated[list[str], MinLen(1)]
    samples: list[Positive]
    answers: list[Positive]  # values that all samples ask for
    correct: list[Count]  # values that stand in what the model wrote


def _check(ruler: RulerCounts) -> RulerCounts:
    """Return the values if their lists are equally long. Raises ValueError."""
    check_aligned(ruler["task"], ruler["samples"], ruler["answers"], ruler["correct"])
    return ruler


RECORD = Annotated[RulerCounts, AfterValidator(_check)]


# --- in a row


@dataclass(frozen=True, kw_only=True)
class RulerCell:
    """The values that a row found in a task of RULER, in windows of one length."""

    task: str  # its name in RULER
    multiple: float  # of T: the window
    window: int  # tokens
    correct: int  # values found, of all seeds
    answers: int  # values asked for
    share: float  # of the answers that are correct, mean over seeds
    ci95: Interval  # over the seeds and the samples, each of which may ask for several values


def _rows_of(table: TableBeside) -> list[tuple[RulerCell, ...] | None]:
    return [_ruler_of(members) for members in table.rows]


# Numbers beside the loss are what a protocol measures in addition to it. These have a table of their own and
# no column in tables of losses. It comes after the table of `needle`.
RULER: NumbersBeside[RulerCounts, tuple[RulerCell, ...], None] = NumbersBeside(
    protocol="ruler", rows_of=_rows_of, is_beside_losses=False, order=40
)


def _ruler_of(members: Sequence[Member]) -> tuple[RulerCell, ...] | None:
    """Return what a row found; None where it was not measured."""
    seeds_of: dict[tuple[str, float, int], list[SeedFacts]] = defaultdict(list)
    for measurement in by_rising_window(members):
        ruler = RULER.measured(measurement)
        if ruler is None:
            continue
        columns = zip(ruler["task"], ruler["correct"], ruler["answers"], ruler["samples"], strict=True)
        for task, correct, answers, samples in columns:
            # A sample may ask for several values, which are found or missed together. So the interval counts
            # samples.
            key = (task, measurement.multiple, measurement.window)
            seeds_of[key].append(SeedFacts(correct, answers, samples))
    cells = []
    for (task, multiple, window), seeds in seeds_of.items():
        count = FactCount(seeds)
        cell = RulerCell(
            task=task,
            multiple=multiple,
            window=window,
            correct=count.correct,
            answers=count.answers,
            share=count.share,
            ci95=count.ci95,
        )
        cells.append(cell)
    return tuple(cells) or None
