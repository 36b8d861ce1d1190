"""Intervals of shares: of k hits in n trials, of the mean share over seeds, of the difference of two shares.

`share` is from 0 to 1, and `count` is the number of windows that it is a share of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from posenc.results.statistics.intervals import CONFIDENCE, Interval, mean_and_spread, student_quantile


@dataclass(frozen=True)
class SeedFacts:
    """Count the facts that one seed found."""

    correct: int
    answers: int
    samples: int  # that are drawn independently; all seeds have the same ones


@dataclass(frozen=True)
class FactCount:
    """Count facts that were found, over seeds."""

    seeds: Sequence[SeedFacts]  # at least one

    @property
    def correct(self) -> int:
        """Return how many were found, by all seeds."""
        return sum(seed.correct for seed in self.seeds)

    @property
    def answers(self) -> int:
        """Return how many were asked for, of all seeds."""
        return sum(seed.answers for seed in self.seeds)

    @property
    def share(self) -> float:
        """Return the share of the answers that are correct, mean over seeds."""
        share, _ = self._mean_and_spread()
        return share

    @property
    def ci95(self) -> Interval:
        """Return the 95% interval of the share, over samples and seeds."""
        share, spread = self._mean_and_spread()
        # The fewest: a larger count would make the interval narrower than the seed with the fewest samples
        # allows.
        samples = min(seed.samples for seed in self.seeds)
        return interval_on_shared_windows(share, samples, len(self.seeds), spread)

    def _mean_and_spread(self) -> tuple[float, float | None]:
        return mean_and_spread([seed.correct / seed.answers for seed in self.seeds])


def wilson(share: float, count: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the Wilson (1927) score interval of a proportion of `count`; valid near 0 and 1."""
    # scipy.stats.binomtest has it, but takes whole numbers of hits only, which the mean share of several
    # seeds times `count` need not be. Without scipy.stats `posenc compare` also starts a second sooner.
    return score_interval(share, count, NormalDist().inv_cdf(0.5 + confidence / 2))


def score_interval(share: float, count: float, quantile: float) -> Interval:
    """Return the lowest and the highest true share p from which `share` is `quantile` standard errors away.

    The standard error is that of the true share, sqrt(p (1 - p) / count), not that of the observed one. So
    the two ends solve (share - p)^2 = quantile^2 p (1 - p) / count.
    """
    square = quantile * quantile
    middle = share + square / (2 * count)
    shrink = 1 + square / count
    half = quantile * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    # The formula stays within 0 and 1, but its rounding may not.
    low = max(0.0, (middle - half) / shrink)
    high = min(1.0, (middle + half) / shrink)
    return low, high


def clopper_pearson(count: int, total: int) -> Interval:
    """Return the interval of a probability, by `count` hits in `total` trials.

    It is that of Clopper and Pearson (1934), from exact binomial tails, except if all trials are hits or none
    is. Their interval allows half of the error on each side, but an interval that reaches up to 1 cannot miss
    the truth on that side. So here the other side has all of the error: 3 hits of 3 say that the probability
    is above 0.37, and 5 of 5 that it is above 0.55.

    The price is a little coverage. With 2 to 10 trials the 95% interval covers at least 92.6%, for every
    probability. The original one covers at least 95%.
    """
    from scipy.special import betaincinv  # here, so that commands without intervals start sooner

    error = 1 - CONFIDENCE
    error_below = error if count == total else error / 2
    error_above = error if count == 0 else error / 2
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, error_below))
    high = 1.0 if count == total else float(betaincinv(count + 1, total - count, 1 - error_above))
    return low, high


def interval_on_shared_windows(
    share: float, count: int, seeds: int, spread: float | None, confidence: float = CONFIDENCE
) -> Interval:
    """Return the interval of the mean share over `seeds` that were all measured on the same `count` windows.

    `spread` is the standard deviation over seeds; None for one seed.

    Windows and seeds are two sources of error here, and more seeds do not make the error of the windows
    smaller. So Wilson's interval over the windows and Student's t interval over the seeds are joined: the
    half width on each side is the root of the sum of their squares.
    """
    low, high = wilson(share, count, confidence)
    if spread is None:
        return low, high
    quantile = student_quantile(seeds - 1, error=1 - confidence)
    seed_half = quantile * spread / math.sqrt(seeds)
    # Side by side and not by one half width: near 0 and 1 Wilson's interval is lopsided.
    below = math.hypot(share - low, seed_half)
    above = math.hypot(high - share, seed_half)
    return max(0.0, share - below), min(1.0, share + above)


def interval_on_own_windows(
    share: float, count: int, seeds: int, spread: float | None, confidence: float = CONFIDENCE
) -> Interval:
    """Return the interval of the mean share over `seeds` that each drew `count` windows of their own.

    `spread` is the standard deviation over seeds; None for one seed.

    The spread holds the error of seeds and of windows together. It gives an effective number of windows: so
    many independent windows would make the mean share vary as much. The interval is Wilson's for that number,
    with Student's quantile over seeds in place of the normal one (Korn and Graubard 1998, for surveys).

    It is at least as wide as Wilson's interval over all windows. Otherwise three seeds that find everything,
    which have no spread, would have an interval without width. Student's t alone covers 76 to 90% where
    shares lie near 0 or 1. This one covers 93 to 96% in most cases (scripts/checks/intervals.py).
    """
    low, high = wilson(share, seeds * count, confidence)
    if spread is None or spread == 0:
        return low, high
    quantile = student_quantile(seeds - 1, error=1 - confidence)
    variance = spread**2 / seeds
    # Not 0: a mean share of 0 or 1 has no spread, because all seeds then found nothing or everything.
    effective_count = share * (1 - share) / variance
    low_over_seeds, high_over_seeds = score_interval(share, effective_count, quantile)
    return min(low, low_over_seeds), max(high, high_over_seeds)


def difference_of_shares(
    first: float, first_interval: Interval, second: float, second_interval: Interval
) -> Interval:
    """Return the interval of first - second, made of the intervals of both (Newcombe 1998)."""
    first_low, first_high = first_interval
    second_low, second_high = second_interval
    difference = first - second
    # The difference is low if the first share is low and the second one high, so that these two ends belong
    # together.
    below = math.hypot(first - first_low, second_high - second)
    above = math.hypot(first_high - first, second - second_low)
    return difference - below, difference + above
