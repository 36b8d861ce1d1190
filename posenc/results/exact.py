"""Exact match: which seeds of a row learned a task within T, and how many answers those get right beyond.

Outcomes are bimodal: a seed finds a rule that goes on, or it does not (arXiv 2402.09371). So the number of
seeds that learned comes first, and of those the median and the range, never a mean.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from posenc.results.measurements import Member
from posenc.results.records import Exact
from posenc.results.statistics.intervals import Interval
from posenc.results.statistics.proportions import clopper_pearson

LEARNED = 90.0  # per cent of whole answers in windows of T: a seed below it did not learn the task
QUARTILES_FROM = 5  # seeds that learned: from here on quartiles are shown


@dataclass(frozen=True)
class Spread:
    """The median and the range of a share over seeds; quartiles from five seeds on."""

    median: float
    low: float
    high: float
    quartiles: Interval | None = None

    @classmethod
    def of(cls, shares: Sequence[float]) -> Spread:
        """Return the spread of at least one share."""
        quartiles = None
        if len(shares) >= QUARTILES_FROM:
            first, _, third = statistics.quantiles(shares, n=4, method="inclusive")
            quartiles = (first, third)
        return cls(statistics.median(shares), min(shares), max(shares), quartiles)


@dataclass(frozen=True)
class ExactCell:
    """Answers of the seeds of a row in windows of one length; shares from 0 to 1."""

    multiple: float  # of T
    window: int  # tokens
    size: int  # of the instances, as the task counts it
    instances: int  # in each seed
    seeds: int  # in the numbers: those that learned; of a row that did not learn, all
    whole: Spread  # share of instances whose answer is wholly right
    tokens: Spread  # share of the tokens of answers that are right, those before being given
    generated_tokens: Spread | None  # the same, going on from the model's own tokens


@dataclass(frozen=True)
class RowExact:
    """The answers of a row."""

    learned: int  # seeds with enough whole answers in windows of T, as trained
    seeds: int  # that were measured there, or diverged
    learned_ci95: Interval  # exact binomial, of the chance that a seed learns
    cells: tuple[ExactCell | None, ...]  # in the order of the comparison's windows
    note: str | None  # how many seeds have no number


@dataclass(frozen=True)
class ExactColumns:
    """The windows of a table of tasks, and the level that a seed needs within T."""

    level: float  # per cent
    multiples: tuple[float, ...]  # of T


def exact_of_rows(
    rows: Sequence[Sequence[Member]], level: float, multiples: Sequence[float]
) -> tuple[ExactColumns | None, list[RowExact | None]]:
    """Return the columns, None without a number, and the answers of each row, given as its members."""
    answers = [_exact_of(members, level, multiples) for members in rows]
    if not any(answers):
        return None, answers
    return ExactColumns(level, tuple(multiples)), answers


def _exact_of(members: Sequence[Member], level: float, multiples: Sequence[float]) -> RowExact | None:
    """Return the answers of a row; None without a number."""
    measured = [member for member in members if _within(member) is not None]
    if not measured:
        return None
    learned = [member for member in measured if _has_learned(member, level)]
    # a run that diverged is a seed that did not learn; one that was stopped may still learn
    diverged = sum(member.run.state == "diverged" for member in members)
    seeds = len(measured) + diverged
    missing = len(members) - seeds
    shown = learned or measured
    return RowExact(
        learned=len(learned),
        seeds=seeds,
        learned_ci95=clopper_pearson(len(learned), seeds),
        cells=tuple(_cell(shown, multiple) for multiple in multiples),
        note=f"{missing} of {len(members)} without" if missing else None,
    )


def _within(member: Member) -> Exact | None:
    """Return the answers of a run as trained, in windows of T."""
    return None if member.crop_line is None else member.crop_line.exact


def _has_learned(member: Member, level: float) -> bool:
    answers = _within(member)
    assert answers is not None
    return 100 * answers["right"] / answers["instances"] >= level - 1e-9


def _cell(members: Sequence[Member], multiple: float) -> ExactCell | None:
    """Return the answers of some seeds in a window; None if any of them has none there."""
    measurements = [member.by_multiple.get(multiple) for member in members]
    answers: list[Exact] = []
    window = 0
    for measurement in measurements:
        if measurement is None or measurement.exact is None:
            return None
        answers.append(measurement.exact)
        window = measurement.window
    first = answers[0]
    return ExactCell(
        multiple=multiple,
        window=window,
        size=first["size"],
        instances=first["instances"],
        seeds=len(answers),
        whole=Spread.of([answer["right"] / answer["instances"] for answer in answers]),
        tokens=Spread.of([answer["tokens_right"] / answer["tokens"] for answer in answers]),
        generated_tokens=_generated(answers),
    )


def _generated(answers: Sequence[Exact]) -> Spread | None:
    shares = []
    for answer in answers:
        if "generated_tokens_right" not in answer:
            return None
        shares.append(answer["generated_tokens_right"] / answer["tokens"])
    return Spread.of(shares)
