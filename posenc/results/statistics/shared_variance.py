"""Seed variances shared between rows: empirical Bayes (Smyth 2004, limma's `eBayes(trend=)`).

Three seeds tell little of their own variance. Student's t has two degrees of freedom then, and 28 comparisons
need 24 standard errors. The other rows tell which variance is usual, and rows that lose more also vary more.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

ROWS = 8  # fewer: each row has its own variance alone
SEEDS = 3
FLOOR = 0.02  # bits per byte above the best: the trend begins here
MOST_PRIOR = 3.0  # degrees of freedom that the other rows stand for
EXPERIMENTS = 600  # of the check
LEAST_COVERAGE = 0.90
MOST_FALSE = 0.05
Shared = tuple[tuple[float, float], ...]  # variance of one seed and its degrees of freedom, by row


@functools.lru_cache(maxsize=64)
def shared_variances(rows: tuple[tuple[float, ...], ...]) -> Shared | None:
    """Return the variance of each row's seeds and its degrees of freedom; None where rows must not share.

    `rows` has the loss of each seed in bits per byte. A row's variance is the mean of its own and of the
    trend's, weighted by degrees of freedom: three seeds that agree by luck get the variance that is usual
    for rows like theirs. None below ROWS rows or SEEDS seeds, where the check fails, or where most rows'
    seeds are equal.
    """
    import numpy as np

    if len(rows) < ROWS or min(map(len, rows)) < SEEDS:
        return None
    means = np.array([np.mean(row) for row in rows])
    counts = np.array([len(row) for row in rows])
    variances = np.array([np.var(row, ddof=1) for row in rows])
    if not np.median(variances) > 0:
        return None
    size = np.log(np.maximum(means - means.min(), FLOOR))
    shared, freedom = _moderate(variances, size, counts - 1)
    if not _holds(shared, freedom, size, counts, int(means.argmin())):
        return None
    return tuple(zip(shared.tolist(), freedom.tolist(), strict=True))


def predicted_variances(
    rows: tuple[tuple[float, ...], ...], means: tuple[float, ...]
) -> tuple[tuple[float, float], ...] | None:
    """Return the variance of one seed, and its degrees of freedom, for rows that have a single seed.

    `rows` has the losses of rows with several seeds, in bits per byte, `means` those of the single seeds.
    With ROWS rows of SEEDS seeds it is the trend at the row's loss, else the variance of all rows together.
    It counts as at most MOST_PRIOR degrees of freedom, as many as neighbours say of a row. None without a row
    that has several seeds, and where most rows' seeds are equal.
    """
    import numpy as np

    variances = np.array([np.var(row, ddof=1) for row in rows])
    freedom = np.array([len(row) - 1 for row in rows])
    if not len(rows) or not np.median(variances) > 0:
        return None
    if len(rows) < ROWS or min(map(len, rows)) < SEEDS:
        pooled = float((freedom * variances).sum() / freedom.sum())
        pooled_freedom = min(float(freedom.sum()), MOST_PRIOR)
        return tuple((pooled, pooled_freedom) for _ in means)
    row_means = np.array([np.mean(row) for row in rows])
    lowest = row_means.min()
    floored = np.maximum(variances, 1e-4 * np.median(variances))
    trend = _trend(floored, np.log(np.maximum(row_means - lowest, FLOOR)), freedom)
    expected = trend.expected(np.log(np.maximum(np.array(means) - lowest, FLOOR)))
    prior = float(trend.prior[0])
    return tuple((variance, prior) for variance in expected.tolist())


@dataclass(frozen=True)
class _Trend:
    """A line of log variance over the size of rows, and how closely variances follow it."""

    level: np.ndarray  # (..., 1) at the middle
    slope: np.ndarray  # (..., 1)
    middle: float  # mean size
    prior: np.ndarray  # (..., 1) degrees of freedom that the line stands for

    def expected(self, size: np.ndarray) -> np.ndarray:
        """Return the variances of rows of these sizes, (..., R)."""
        import numpy as np
        from scipy.special import digamma

        logs = self.level + self.slope * (size - self.middle)
        variances: np.ndarray = np.exp(logs + digamma(self.prior / 2) - np.log(self.prior / 2))
        return variances


def _trend(variances: np.ndarray, size: np.ndarray, freedom: np.ndarray) -> _Trend:
    """Return the line that the rows' own variances (..., R) follow, which never falls with the size.

    How much the rows scatter around it beyond chance gives the prior's degrees of freedom, at most
    MOST_PRIOR.
    """
    import numpy as np
    from scipy.special import digamma, polygamma

    logs = np.log(variances) - digamma(freedom / 2) + np.log(freedom / 2)  # (..., R)
    centred = size - size.mean()
    slope = np.maximum((logs * centred).sum(-1, keepdims=True) / max((centred**2).sum(), 1e-12), 0.0)
    level = logs.mean(-1, keepdims=True)
    scatter = ((logs - level - slope * centred) ** 2).sum(-1, keepdims=True) / (len(size) - 2)
    halves = np.geomspace(MOST_PRIOR / 2, 0.01, 200)  # trigamma rises as its argument falls
    prior = 2 * np.interp(scatter - polygamma(1, freedom / 2).mean(), polygamma(1, halves), halves)
    return _Trend(level, slope, float(size.mean()), prior)


def _moderate(variances: np.ndarray, size: np.ndarray, freedom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return shared variances and degrees of freedom from the rows' own (..., R), with a trend over `size`.

    Student's t counts half of the prior's degrees of freedom, as few rows tell them badly: with all of them,
    as limma has it, intervals covered 92% of the study's held-out seeds, so 95%.
    """
    import numpy as np

    variances = np.maximum(variances, 1e-4 * np.median(variances, axis=-1, keepdims=True))
    trend = _trend(variances, size, freedom)
    prior = trend.prior
    shared = (prior * trend.expected(size) + freedom * variances) / (prior + freedom)
    return shared, np.broadcast_to(prior / 2 + freedom, variances.shape)


def _holds(
    variances: np.ndarray, freedom: np.ndarray, size: np.ndarray, counts: np.ndarray, best: int
) -> bool:
    """Return whether shared variances give right intervals, by simulation from the records at hand.

    In each of EXPERIMENTS every row has a true variance drawn from what is known of it, and new seeds. Of the
    differences from the best row 95% intervals must cover LEAST_COVERAGE, and any of the corrected ones be
    too high at most in MOST_FALSE. So little is known that the drawn variances scatter more than true ones:
    where the check gave 91%, intervals covered 94%. A stricter one would turn with every row that is added.
    """
    import numpy as np
    from scipy.special import stdtr

    rng = np.random.default_rng(0)
    shape = (EXPERIMENTS, len(counts))
    own_freedom = counts - 1
    truth = variances * freedom / rng.chisquare(freedom, shape)
    error = rng.normal(size=shape) * np.sqrt(truth / counts)
    drawn = truth * rng.chisquare(own_freedom, shape) / own_freedom
    drawn_shared, drawn_freedom = _moderate(drawn, size, own_freedom)
    part = drawn_shared / counts
    best_part = part[:, [best]]
    joined = (part + best_part) ** 2 / (part**2 / drawn_freedom + best_part**2 / drawn_freedom[:, [best]])
    not_best = np.arange(len(counts)) != best
    distance = (error - error[:, [best]]) / np.sqrt(part + best_part)
    above = stdtr(joined, -distance)[:, not_best]
    covered = ((above > 0.025) & (above < 0.975)).mean()
    false = (above < 0.025 / not_best.sum()).any(axis=1).mean()
    return bool(covered >= LEAST_COVERAGE and false <= MOST_FALSE)
