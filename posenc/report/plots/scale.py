"""A vertical scale, fine below a loss and coarse above, so that what collapsed does not squash the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

FINE = 0.62  # of the height, for what lies below the split
WORTH = 3.0  # all of the range is so many times the fine one before the scale is split
COARSE_BACK = "#F2F2F2"


@dataclass(frozen=True)
class Split:
    """Linear from `low` to `at` on the lower part of the axis, and from there to `high` on the rest."""

    low: float
    at: float
    high: float

    @property
    def words(self) -> str:
        """A sentence for the reader."""
        times = (self.high - self.at) / (self.at - self.low) * FINE / (1 - FINE)
        return f"Above {number(round(self.at, 2))} (grey) the scale is {times:.0f} times coarser."


def split_of(values: Sequence[float], near: Sequence[float]) -> Split | None:
    """The split that leaves all of `near` in the fine part; None where one linear scale serves."""
    drawn, kept = [v for v in values if math.isfinite(v)], [v for v in near if math.isfinite(v)]
    if not drawn or not kept or max(kept) <= min(kept):
        return None
    room = 0.08 * (max(kept) - min(kept))
    low, at = min(*kept, *drawn) - room, max(kept) + room
    high = max(drawn) + 0.06 * (max(drawn) - at)
    return Split(low, at, high) if high - at > (WORTH - 1) * (at - low) else None


def apply(axes: Axes, split: Split) -> None:
    """Give the axes this scale; its coarse part has a grey ground."""

    def forward(y: Any) -> Any:
        values = np.asarray(y, float)
        fine = (values - split.low) / (split.at - split.low) * FINE
        return np.where(
            values <= split.at, fine, FINE + (values - split.at) / (split.high - split.at) * (1 - FINE)
        )

    def back(v: Any) -> Any:
        values = np.asarray(v, float)
        fine = split.low + values / FINE * (split.at - split.low)
        coarse = split.at + (values - FINE) / (1 - FINE) * (split.high - split.at)
        return np.where(values <= FINE, fine, coarse)

    axes.set_yscale("function", functions=(forward, back))
    axes.set_ylim(split.low, split.high)
    fine = [t for t in MaxNLocator(5).tick_values(split.low, split.at) if split.low <= t <= split.at]
    coarse = MaxNLocator(4).tick_values(split.at, split.high)
    gap = (split.high - split.at) * 0.12  # a tick just above the split would touch the one below it
    ticks = fine + [t for t in coarse if split.at + gap <= t <= split.high]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.axhspan(split.at, split.high, color=COARSE_BACK, zorder=0, linewidth=0)


def log_axis(axes: Axes) -> None:
    """A log axis in plain numbers: 1, 2, 5 of each decade, tens where there are many."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    few = high / low < 300
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=9))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))


def number(value: float) -> str:
    """A tick's label: the shortest that says the number, with a real minus."""
    return f"{round(value, 9):g}".replace("-", "−")
