"""Intervals of shares: how many of so many windows, and the difference of two such shares."""

from __future__ import annotations

import math
from statistics import NormalDist

from posenc.results.statistics.intervals import CONFIDENCE, Interval


def wilson(share: float, count: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the Wilson (1927) score interval of a proportion of `count`; valid near 0 and 1.

    By hand: the mean of several shares need not be a whole number of `count`, and scipy.stats.binomtest takes
    whole numbers only. `posenc compare` also starts sooner with scipy.special alone.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    middle = share + z * z / (2 * count)
    shrink = 1 + z * z / count
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low = max(0.0, (middle - half) / shrink)
    high = min(1.0, (middle + half) / shrink)
    return low, high


def wilson_over_seeds(
    share: float, count: int, seeds: int, spread: float | None, confidence: float = CONFIDENCE
) -> Interval:
    """Return the interval of a mean share of `count` windows each over `seeds`.

    Wilson's over the windows, which all seeds share, joined with Student's t over the seeds by the root of
    the sum of squares. `spread` is the standard deviation over seeds; None for one seed.
    """
    low, high = wilson(share, count, confidence)
    if spread is None:
        return low, high
    from scipy.special import stdtrit

    quantile = -float(stdtrit(seeds - 1, (1 - confidence) / 2))
    seed_half = quantile * spread / math.sqrt(seeds)
    below = math.hypot(share - low, seed_half)
    above = math.hypot(high - share, seed_half)
    return max(0.0, share - below), min(1.0, share + above)


def difference_of_shares(
    first: float, first_interval: Interval, second: float, second_interval: Interval
) -> Interval:
    """Return the interval of first - second (Newcombe 1998, from both intervals)."""
    first_low, first_high = first_interval
    second_low, second_high = second_interval
    difference = first - second
    below = math.hypot(first - first_low, second_high - second)
    above = math.hypot(first_high - first, second - second_low)
    return difference - below, difference + above
