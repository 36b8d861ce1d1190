"""Values recalled by a row: at a place, within T and beyond, and by how many seeds (see recall.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from posenc.results.plain import FIELDS_IN_JSON
from posenc.results.statistics.intervals import CONFIDENCE, Interval, mean_and_spread
from posenc.results.statistics.proportions import interval_on_own_windows, interval_on_shared_windows

Rank = Literal["best", "tied", "unresolved", "below"]
Needs = Literal["seeds", "windows"]


@dataclass(frozen=True, order=True)
class Place:
    """The window and the distance at which values are asked for."""

    multiple: float  # of T: the window
    window: int  # tokens
    distance: int | None  # tokens between the two places of the pair; null for the mean over those within T
    pairs: int  # in each window


@dataclass(frozen=True)
class SeedRecall:
    """The share of the planted values that one seed finds at a place."""

    accuracy: float
    nats: float  # per value
    windows: int
    has_fixed_draw: bool  # the windows that all runs from before posenc 0.2 share


@dataclass(frozen=True)
class RecallCell:
    """The values that the seeds of a row find in windows of one length, as shares from 0 to 1.

    Only seeds that learned count, or all of them if none did.
    """

    place: Place = field(metadata=FIELDS_IN_JSON)
    accuracy: float  # mean over seeds
    spread: float | None  # standard deviation over seeds; null for one
    ci95: Interval  # over windows and seeds
    nats: float  # per value, mean over seeds
    windows: int  # in each seed
    seeds: int
    has_fixed_draw: bool  # whether some seed has the windows that all runs from before posenc 0.2 share
    rank: Rank | None = None  # tied: at most 10 points less than the best, with all of the 95% interval
    needs: Needs | None = None  # whether more seeds or more windows would settle what is unresolved

    def interval(self, confidence: float) -> Interval:
        """Return the interval of its accuracy over windows and seeds."""
        interval_of = _interval_function(self.has_fixed_draw)
        return interval_of(self.accuracy, self.windows, self.seeds, self.spread, confidence)


def _interval_function(has_fixed_draw: bool) -> Callable[[float, int, int, float | None, float], Interval]:
    """Return the function that makes the interval of a mean share from share, windows, seeds and spread."""
    return interval_on_shared_windows if has_fixed_draw else interval_on_own_windows


@dataclass(frozen=True)
class Learning:
    """How many seeds of a row learned: they find enough within T, as trained."""

    seeds: int  # seeds with a number within T, and those that diverged
    learned: int  # how many of these learned
    ci95: Interval  # of the probability that a seed learns (Clopper-Pearson, one-sided at 0 and 1)


@dataclass(frozen=True)
class Horizon:
    """The largest distance, in the longest window, with at least half of the accuracy within T."""

    distance: int  # tokens; 0 if no distance has as much
    multiple: float  # the distance / T
    longest: bool  # whether it is the largest distance asked for, so that the true one may be larger


@dataclass(frozen=True)
class RowRecall:
    """The recall of a row."""

    within: RecallCell | None  # in windows of T
    learning: Learning | None  # how many seeds find enough within T; null if that was not measured
    learned: bool | None  # whether any seed learned; null if that was not measured
    beyond: tuple[RecallCell | None, ...]  # in the order of the comparison's multiples
    horizon: Horizon | None  # null for a row that did not learn, or finds nothing within T
    grid: tuple[RecallCell, ...]  # every window, distance and number of pairs
    note: str | None  # how many seeds have no number or did not learn

    @property
    def cells(self) -> tuple[RecallCell | None, ...]:
        """Return the recall within T and in each longer window."""
        return (self.within, *self.beyond)


def cell_of(place: Place, seeds: Sequence[SeedRecall]) -> RecallCell:
    """Return the recall of the seeds of a row at a place, with its interval."""
    accuracy, spread = mean_and_spread([seed.accuracy for seed in seeds])
    nats, _ = mean_and_spread([seed.nats for seed in seeds])
    # Seeds may have been asked in different numbers of windows. The fewest make the interval wider, never
    # narrower.
    windows = min(seed.windows for seed in seeds)
    # One seed of the fixed draw is enough: the interval for shared windows is the wider one, and so the safe
    # one.
    has_fixed_draw = any(seed.has_fixed_draw for seed in seeds)
    interval_of = _interval_function(has_fixed_draw)
    return RecallCell(
        place=place,
        accuracy=accuracy,
        spread=spread,
        ci95=interval_of(accuracy, windows, len(seeds), spread, CONFIDENCE),
        nats=nats,
        windows=windows,
        seeds=len(seeds),
        has_fixed_draw=has_fixed_draw,
    )
