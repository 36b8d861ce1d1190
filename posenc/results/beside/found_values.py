"""Values found in a text, counted by question and window: what the cells of `needle` and `ruler` share.

A question is what is asked in a window: of `needle` a depth in the text and a number of keys, of `ruler` a
task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from posenc.results.beside.base import by_rising_window
from posenc.results.measurements import Measurement, Member
from posenc.results.statistics.intervals import Interval
from posenc.results.statistics.proportions import FactCount, SeedFacts

QuestionT = TypeVar("QuestionT")


@dataclass(frozen=True, kw_only=True)
class FoundValues:
    """The values that the seeds of a row found, by one question in windows of one length."""

    multiple: float  # of T: the window
    window: int  # tokens
    correct: int  # values found, of all seeds
    answers: int  # values asked for
    share: float  # of the answers that are correct, mean over seeds
    ci95: Interval  # over the seeds and the windows (ruler: samples), each with one value or several


def found_values(
    members: Sequence[Member],
    questions_of: Callable[[Measurement], Iterable[tuple[QuestionT, SeedFacts]]],
) -> list[tuple[QuestionT, FoundValues]]:
    """Return each question with what a row found by it, in each window; shorter windows first.

    `questions_of` gives what one seed found in windows of one length, nothing where it was not asked.
    """
    seeds_of: dict[tuple[QuestionT, float, int], list[SeedFacts]] = defaultdict(list)
    for measurement in by_rising_window(members):
        for question, facts in questions_of(measurement):
            seeds_of[question, measurement.multiple, measurement.window].append(facts)
    # A dictionary keeps the order in which its keys came, so the windows rise.
    values_by_question = []
    for (question, multiple, window), seeds in seeds_of.items():
        count = FactCount(seeds)
        values = FoundValues(
            multiple=multiple,
            window=window,
            correct=count.correct,
            answers=count.answers,
            share=count.share,
            ci95=count.ci95,
        )
        values_by_question.append((question, values))
    return values_by_question
