"""Exact match: which seeds of a row learned a task within T, and how many answers these get right beyond.

A seed finds a rule that holds for longer instances, or it does not, with little in between (arXiv
2402.09371). So the number of seeds that learned comes first, then their median and range, and never a mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NotRequired

from pydantic import AfterValidator
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from posenc.core.run_states import DIVERGED
from posenc.results.beside.base import LEARNED, ROUNDING, NumbersBeside, TableBeside
from posenc.results.checks import check_at_most
from posenc.results.measurements import Member
from posenc.results.statistics.documents import Count, Positive
from posenc.results.statistics.intervals import Interval
from posenc.results.statistics.proportions import clopper_pearson

QUARTILES_FROM = 5  # seeds; with fewer there are no quartiles


# --- in a record


class ExactCounts(TypedDict):
    """Answers of instances of a task in windows of one length: how many are right."""

    size: Positive  # of the instances, as the task counts it
    instances: Positive
    right: Count  # instances with a wholly right answer
    tokens: Positive  # of all answers
    tokens_right: Count  # tokens that are the first choice, where each sees the right ones before it
    generated_right: NotRequired[Count]  # instances with a wholly right answer that the model itself wrote
    generated_tokens_right: NotRequired[Count]  # right tokens in the answers that the model itself wrote


def _check(exact: ExactCounts) -> ExactCounts:
    """Return the answers if no more of them are right than there are. Raises ValueError."""
    right = [exact["right"], exact.get("generated_right", 0)]
    right_tokens = [exact["tokens_right"], exact.get("generated_tokens_right", 0)]
    check_at_most(right, [exact["instances"]] * len(right))
    check_at_most(right_tokens, [exact["tokens"]] * len(right_tokens))
    return exact


RECORD = Annotated[ExactCounts, AfterValidator(_check)]


# --- in a row


@dataclass(frozen=True)
class Spread:
    """The median and the range of a share over seeds; quartiles from five seeds on."""

    median: float
    low: float  # of the seed with the lowest share
    high: float  # of the seed with the highest share
    quartiles: Interval | None = None  # first and third; null for fewer than five seeds

    @classmethod
    def of(cls, shares: Sequence[float]) -> Spread:
        """Return the spread of at least one share."""
        quartiles = None
        if len(shares) >= QUARTILES_FROM:
            # `inclusive` is what numpy.percentile does by default. The default of this function puts the
            # quartiles farther out.
            first, _, third = statistics.quantiles(shares, n=4, method="inclusive")
            quartiles = (first, third)
        return cls(statistics.median(shares), min(shares), max(shares), quartiles)


@dataclass(frozen=True)
class ExactCell:
    """The answers of the seeds of a row in windows of one length, as shares from 0 to 1."""

    multiple: float  # of T
    window: int  # tokens
    size: int  # of the instances, as the task counts it
    instances: int  # in each seed
    seeds: int  # those that learned, or all if none did
    whole: Spread  # share of instances whose answer is wholly right
    tokens: Spread  # share of right tokens in answers, if the model reads the right tokens before each
    generated_tokens: Spread | None  # the same, if the model reads its own tokens before each


@dataclass(frozen=True)
class RowExact:
    """The answers of a row."""

    learned: int  # seeds with enough whole answers in windows of T, as trained
    seeds: int  # seeds that were measured there or diverged
    learned_ci95: Interval  # of the probability that a seed learns (Clopper-Pearson, one-sided at 0 and 1)
    cells: tuple[ExactCell | None, ...]  # in the order of the comparison's windows
    note: str | None  # how many seeds have no number


@dataclass(frozen=True)
class TableExact:
    """The windows of a table of tasks, and the level that a seed needs within T."""

    level: float  # per cent of whole answers
    multiples: tuple[float, ...]  # of T


def _whole_of(table: TableBeside) -> TableExact | None:
    """Return the columns of a table of tasks; None if no row has an answer in windows of T."""
    has_answers = any(_within(member) is not None for members in table.rows for member in members)
    return TableExact(LEARNED, table.multiples) if has_answers else None


def _rows_of(table: TableBeside) -> list[RowExact | None]:
    return [_exact_of(members, table.multiples) for members in table.rows]


# Numbers beside the loss are what a protocol measures in addition to it. These have a table of their own and
# no column in tables of losses. It comes after the table of `recall`, whose order is 10.
EXACT: NumbersBeside[ExactCounts, RowExact, TableExact] = NumbersBeside(
    protocol="exact", rows_of=_rows_of, whole_of=_whole_of, is_beside_losses=False, order=20
)


def _exact_of(members: Sequence[Member], multiples: Sequence[float]) -> RowExact | None:
    """Return the answers of a row; None if no seed has any in windows of T."""
    measured = [member for member in members if _within(member) is not None]
    if not measured:
        return None
    learned = [member for member in measured if _has_learned(member)]
    # A run that diverged did not learn. One that was stopped may still learn, so it counts as missing.
    diverged = sum(member.run.state == DIVERGED for member in members)
    seeds = len(measured) + diverged
    missing = len(members) - seeds
    # If nobody learned, the table shows all seeds in brackets, as recall does. A row without a number would
    # look as if it had not been measured.
    members_of_cells = learned or measured
    return RowExact(
        learned=len(learned),
        seeds=seeds,
        learned_ci95=clopper_pearson(len(learned), seeds),
        cells=tuple(_cell(members_of_cells, multiple) for multiple in multiples),
        note=f"{missing} of {len(members)} without" if missing else None,
    )


def _within(member: Member) -> ExactCounts | None:
    """Return the answers of a run as trained, in windows of T."""
    return None if member.crop_line is None else EXACT.measured(member.crop_line)


def _has_learned(member: Member) -> bool:
    """Tell whether enough answers of a run as trained are wholly right in windows of T."""
    answers = _within(member)
    assert answers is not None
    return 100 * answers["right"] / answers["instances"] >= LEARNED - ROUNDING


def _cell(members: Sequence[Member], multiple: float) -> ExactCell | None:
    """Return the answers of seeds in a window; None if any of them has no number there."""
    windows: list[int] = []
    answers: list[ExactCounts] = []
    for member in members:
        measurement = member.by_multiple.get(multiple)
        answers_of_seed = None if measurement is None else EXACT.measured(measurement)
        if measurement is None or answers_of_seed is None:
            # A median of the seeds that are left would be of other seeds than the next cell of the row.
            return None
        windows.append(measurement.window)
        answers.append(answers_of_seed)
    # All seeds have the same instances, so the first one tells their size and their number.
    return ExactCell(
        multiple=multiple,
        window=windows[0],
        size=answers[0]["size"],
        instances=answers[0]["instances"],
        seeds=len(answers),
        whole=Spread.of([answer["right"] / answer["instances"] for answer in answers]),
        tokens=Spread.of([answer["tokens_right"] / answer["tokens"] for answer in answers]),
        generated_tokens=_generated(answers),
    )


def _generated(answers: Sequence[ExactCounts]) -> Spread | None:
    """Return the share of right tokens among those that seeds wrote themselves; None if a seed wrote none."""
    shares = []
    for answer in answers:
        if "generated_tokens_right" not in answer:
            # Only runs that were evaluated with eval.generate have answers of their own.
            return None
        shares.append(answer["generated_tokens_right"] / answer["tokens"])
    return Spread.of(shares)
