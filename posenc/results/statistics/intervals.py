"""Means over seeds, and intervals that hold for other seeds and other documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
# The search needs an end, and tables print p<0.001 anyway.
SMALLEST_P = 1e-15  # a smaller p is given as this one
BISECTIONS = 40  # steps of the search for log p; 40 find it to 1e-10

Interval = tuple[float, float]  # low, high


@dataclass(frozen=True)
class DocumentPart:
    """The variance of an estimate that comes from the choice of documents."""

    variance: float | None  # None below MIN_DOCUMENTS (documents.py); then there is no interval
    freedom: float  # degrees of freedom of the variance


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, with its variance from training (seeds) and from test data (documents).

    Variances are those of `value`, in its unit squared. The variance from documents is the jackknife variance
    of the mean over seeds. What a seed does to single documents is counted in both variances, which makes
    intervals too wide rather than too narrow.
    """

    value: float
    seed_variance: float  # 0 for one seed: the estimate then holds for this model only
    document_variance: float | None  # None below MIN_DOCUMENTS
    document_freedom: float  # effective number of documents (or groups) - 1
    seed_freedom: float = 1.0

    def half_widths(self, error: float) -> tuple[float, float] | None:
        """Return the half widths of two Student's t intervals: over seeds (0 for one seed), over documents.

        `error` is how often each may miss the truth: 0.05 for 95% intervals. None below MIN_DOCUMENTS.
        """
        if self.document_variance is None:
            return None
        # Each source has a quantile of its own: two seeds are t with one degree of freedom, a hundred
        # documents nearly normal.
        seed_half = student_quantile(self.seed_freedom, error) * math.sqrt(self.seed_variance)
        document_half = student_quantile(self.document_freedom, error) * math.sqrt(self.document_variance)
        return seed_half, document_half

    def interval(self, confidence: float = CONFIDENCE) -> Interval | None:
        """Return the value +- sqrt(s^2 + d^2), s and d the half widths over seeds and documents.

        None below MIN_DOCUMENTS. By Banerjee (1960) it covers at least the confidence, whatever share of the
        variance comes from seeds. The usual alternative, one t quantile with Satterthwaite's degrees of
        freedom, covers too little, because few seeds say little about their own variance: with 3 seeds and
        0.9 of the variance from seeds, such a 95% interval covered 92.2%, and this one 96%.
        """
        half_widths = self.half_widths(1 - confidence)
        if half_widths is None:
            return None
        half_width = math.hypot(*half_widths)
        return self.value - half_width, self.value + half_width


def student_quantile(freedom: float, error: float) -> float:
    """Return the half width, in standard errors, of the two-sided Student's t interval.

    `error` is how often the interval misses the truth, on both sides together: 0.05 for a 95% interval.
    """
    from scipy.special import stdtrit  # here, so that commands without intervals start sooner

    return -float(stdtrit(freedom, error / 2))


def p_beyond(estimate: Estimate, margin: float) -> float | None:
    """Return the one-sided p-value of the hypothesis that the truth is not beyond the margin.

    For a value of 0.05 and a margin of 0.02 the hypothesis is that the truth is at most 0.02. For -0.05 it is
    that the truth is at least -0.02. p is found by the interval: with confidence 1 - 2p, its end that is
    nearer to 0 lies exactly on the margin. None without an interval.
    """
    if estimate.document_variance is None:
        return None
    excess = abs(estimate.value) - margin
    if excess <= 0:
        return 1.0
    import numpy as np

    # Bisection over log p, by hand: for brentq `posenc compare` would have to import scipy.optimize as well.
    low_log_p = math.log(SMALLEST_P)
    # A value beyond the margin has p of at most 0.5, by the symmetry of t.
    high_log_p = math.log(0.5)
    for _ in range(BISECTIONS):
        log_p = (low_log_p + high_log_p) / 2
        two_sided_error = 2 * float(np.exp(log_p))
        half_widths = estimate.half_widths(two_sided_error)
        assert half_widths is not None
        half_width = math.hypot(*half_widths)
        if half_width < excess:  # the interval does not reach the margin, so p is smaller
            high_log_p = log_p
        else:
            low_log_p = log_p
    # The upper end of what is left: p is never given as smaller than it is.
    return float(np.exp(high_log_p))


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation (n - 1) over seeds, None for a single seed."""
    mean = math.fsum(values) / len(values)
    # Perplexities may be infinite, and the distance of infinity from an infinite mean is no number.
    if len(values) == 1 or not math.isfinite(mean):
        return mean, None
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1))


def welch(value: float, parts: Sequence[tuple[float, float]], documents: DocumentPart) -> Estimate:
    """Return an estimate whose variance over seeds is a sum of independent parts (Welch 1947).

    `parts` are these variances, each with its degrees of freedom: for the difference of two rows, one for
    each row. `documents` is the variance from the choice of documents.
    """
    # Welch-Satterthwaite: (v_1 + v_2 + ...)^2 / (v_1^2 / f_1 + v_2^2 / f_2 + ...)
    seed_variance = sum(variance for variance, _ in parts)
    squares = sum(variance**2 / freedom for variance, freedom in parts)
    seed_freedom = seed_variance**2 / squares if squares else 1.0
    return Estimate(
        value=value,
        seed_variance=seed_variance,
        document_variance=documents.variance,
        document_freedom=documents.freedom,
        seed_freedom=seed_freedom,
    )
