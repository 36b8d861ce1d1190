"""Facts found in a text: what a row found by the protocols `needle` and `ruler`, all seeds together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from posenc.results.measurements import Measurement, Member
from posenc.results.statistics.intervals import Interval
from posenc.results.statistics.proportions import wilson


@dataclass(frozen=True, kw_only=True)
class NeedleCell:
    """The facts that a row found at a depth in windows of one length."""

    keys: int  # sentences in each window
    depth: float  # of the asked one: 0 is the beginning of the text, 1 its end
    multiple: float  # of T: the window
    window: int  # tokens
    correct: int
    answers: int
    share: float
    ci95: Interval  # over the answers


@dataclass(frozen=True, kw_only=True)
class RulerCell:
    """The values that a row found in a task of RULER, in windows of one length."""

    task: str
    multiple: float  # of T: the window
    window: int  # tokens
    correct: int
    answers: int
    share: float
    ci95: Interval  # over the samples, each of which may ask for several values


@dataclass
class _Count:
    """Count facts over seeds."""

    correct: int = 0
    answers: int = 0
    samples: int = 0  # that are drawn independently

    def add(self, correct: int, answers: int, samples: int) -> None:
        """Add those of a seed."""
        self.correct += correct
        self.answers += answers
        self.samples += samples

    @property
    def share(self) -> float:
        return self.correct / self.answers


def needles_of(members: Sequence[Member]) -> tuple[NeedleCell, ...] | None:
    """Return what a row found by the protocol `needle`; None where it was not measured."""
    counts: dict[tuple[int, float, float, int], _Count] = defaultdict(_Count)
    for measurement in _measurements(members):
        needle = measurement.needle
        if needle is None:
            continue
        columns = zip(needle["keys"], needle["depth"], needle["correct"], needle["answers"], strict=True)
        for keys, depth, correct, answers in columns:
            key = (keys, depth, measurement.multiple, measurement.window)
            counts[key].add(correct, answers, answers)
    cells = []
    for (keys, depth, multiple, window), count in counts.items():
        cell = NeedleCell(
            keys=keys,
            depth=depth,
            multiple=multiple,
            window=window,
            correct=count.correct,
            answers=count.answers,
            share=count.share,
            ci95=wilson(count.share, count.samples),
        )
        cells.append(cell)
    return tuple(cells) or None


def ruler_of(members: Sequence[Member]) -> tuple[RulerCell, ...] | None:
    """Return what a row found by the protocol `ruler`; None where it was not measured."""
    counts: dict[tuple[str, float, int], _Count] = defaultdict(_Count)
    for measurement in _measurements(members):
        ruler = measurement.ruler
        if ruler is None:
            continue
        columns = zip(ruler["task"], ruler["correct"], ruler["answers"], ruler["samples"], strict=True)
        for task, correct, answers, samples in columns:
            counts[task, measurement.multiple, measurement.window].add(correct, answers, samples)
    cells = []
    for (task, multiple, window), count in counts.items():
        cell = RulerCell(
            task=task,
            multiple=multiple,
            window=window,
            correct=count.correct,
            answers=count.answers,
            share=count.share,
            ci95=wilson(count.share, count.samples),
        )
        cells.append(cell)
    return tuple(cells) or None


def _measurements(members: Sequence[Member]) -> list[Measurement]:
    """Return the measurements of all seeds, shorter windows first."""
    measurements = [measurement for member in members for measurement in member.by_multiple.values()]
    return sorted(measurements, key=lambda measurement: measurement.multiple)
