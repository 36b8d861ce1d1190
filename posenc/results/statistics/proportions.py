"""Intervals of shares: how many of so many windows, and the difference of two such shares."""

from __future__ import annotations

import math
from statistics import NormalDist

from posenc.results.statistics.intervals import CONFIDENCE, Interval, student_quantile


def wilson(share: float, count: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the Wilson (1927) score interval of a proportion of `count`; valid near 0 and 1.

    It is written by hand since scipy.stats.binomtest takes whole numbers only, and the mean of several shares
    times `count` need not be one. `posenc compare` also starts sooner with scipy.special alone.
    """
    return score_interval(share, count, NormalDist().inv_cdf(0.5 + confidence / 2))


def score_interval(share: float, count: float, quantile: float) -> Interval:
    """Return the lowest and the highest true share that lies `quantile` standard errors from `share`.

    The standard error, over `count`, is that of the true share, not of the one that was observed.
    """
    square = quantile * quantile
    middle = share + square / (2 * count)
    shrink = 1 + square / count
    half = quantile * math.sqrt(share * (1 - share) / count + square / (4 * count * count))
    low = max(0.0, (middle - half) / shrink)
    high = min(1.0, (middle + half) / shrink)
    return low, high


def clopper_pearson(count: int, total: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the exact interval of a probability, from `count` of `total` (Clopper and Pearson 1934).

    If all did, the upper end is 1 for certain, and the lower end has the whole error; if none did, the other
    way round. Three of three say that the probability is above 0.37, five of five that it is above 0.55. With
    2 to 10 seeds it covers at least 93%.
    """
    from scipy.special import betaincinv

    error = 1 - confidence
    error_below = error if count == total else error / 2
    error_above = error if count == 0 else error / 2
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, error_below))
    high = 1.0 if count == total else float(betaincinv(count + 1, total - count, 1 - error_above))
    return low, high


def wilson_over_seeds(
    share: float, count: int, seeds: int, spread: float | None, confidence: float = CONFIDENCE
) -> Interval:
    """Return the interval of the mean over `seeds` of a share of `count` windows that all seeds have.

    It joins Wilson's over the windows with Student's t over the seeds, by the root of the sum of squares.
    `spread` is the standard deviation over seeds; None for one seed.
    """
    low, high = wilson(share, count, confidence)
    if spread is None:
        return low, high
    quantile = student_quantile(seeds - 1, 1 - confidence)
    seed_half = quantile * spread / math.sqrt(seeds)
    below = math.hypot(share - low, seed_half)
    above = math.hypot(high - share, seed_half)
    return max(0.0, share - below), min(1.0, share + above)


def share_over_seeds(
    share: float, count: int, seeds: int, spread: float | None, confidence: float = CONFIDENCE
) -> Interval:
    """Return the interval of the mean over `seeds` of a share of `count` windows, which each seed draws anew.

    It is Wilson's interval of an effective number of windows: of as many as would vary as much as the seeds
    do (Korn and Graubard 1998, for surveys). Student's quantile over seeds takes the place of the normal one.
    The interval is never narrower than Wilson's over all windows, since three seeds that find everything have
    no spread. Student's t alone covers 76 to 90% where shares lie near 0 or 1. This one covers 93 to 96% in
    most cases (scripts/checks/intervals.py).
    """
    low, high = wilson(share, seeds * count, confidence)
    if not spread:
        return low, high
    quantile = student_quantile(seeds - 1, 1 - confidence)
    variance = spread**2 / seeds
    effective_count = share * (1 - share) / variance
    low_over_seeds, high_over_seeds = score_interval(share, effective_count, quantile)
    return min(low, low_over_seeds), max(high, high_over_seeds)


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
