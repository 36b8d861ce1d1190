"""Facts found in a text: what a row of the protocol `needle` found, by depth in the text and window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from posenc.results.measurements import Member
from posenc.results.statistics.intervals import Interval
from posenc.results.statistics.proportions import wilson


@dataclass(frozen=True)
class NeedleCell:
    """The facts that a row found at a depth in windows of one length."""

    keys: int  # sentences in each window
    depth: float  # of the asked one: 0 is the beginning of the text, 1 its end
    multiple: float  # of T: the window
    window: int  # tokens
    correct: int  # of all seeds
    answers: int
    share: float
    ci95: Interval  # over the answers


@dataclass
class _Count:
    """Count facts over seeds."""

    correct: int = 0
    answers: int = 0


def needles_of(members: Sequence[Member]) -> tuple[NeedleCell, ...] | None:
    """Return what the seeds of a row found together; None where it was not measured."""
    counts: dict[tuple[int, float, float, int], _Count] = defaultdict(_Count)
    for member in members:
        for multiple, measurement in sorted(member.by_multiple.items()):
            needle = measurement.needle
            if needle is None:
                continue
            columns = zip(needle["keys"], needle["depth"], needle["correct"], needle["answers"], strict=True)
            for keys, depth, correct, answers in columns:
                count = counts[keys, depth, multiple, measurement.window]
                count.correct += correct
                count.answers += answers
    cells = []
    for (keys, depth, multiple, window), count in counts.items():
        share = count.correct / count.answers
        interval = wilson(share, count.answers)
        cells.append(NeedleCell(keys, depth, multiple, window, count.correct, count.answers, share, interval))
    return tuple(cells) or None
