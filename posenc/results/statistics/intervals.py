"""Means over seeds, and intervals that join what seeds and what documents leave uncertain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
SMALLEST_P = 1e-15
BISECTIONS = 40  # steps of the search for log p; 40 find it to 1e-10

Interval = tuple[float, float]  # low, high


@dataclass(frozen=True)
class DocumentPart:
    """What the documents contribute to the uncertainty of an estimate.

    Below MIN_DOCUMENTS (documents.py) there is no variance, and no interval.
    """

    variance: float | None
    freedom: float  # degrees of freedom of the variance


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, with the variance that training (seeds) and test data (documents) leave in it.

    Variances are of `value`, in its unit squared. The document part is the jackknife variance of the
    seed-averaged value. The effect of a seed on single documents is counted in both, which makes intervals
    too wide rather than too narrow.
    """

    value: float
    seed_variance: float  # 0 for one seed: the estimate then holds for this model only
    document_variance: float | None  # None below MIN_DOCUMENTS
    document_freedom: float  # effective number of documents (or groups) - 1
    seed_freedom: float = 1.0

    def half_widths(self, error: float) -> tuple[float, float] | None:
        """Return two half widths: of the interval of the seeds alone (0 for one seed), and of the documents.

        Both are Student's t intervals. `error` is how often each may miss the truth: 0.05 for 95% intervals.
        None below MIN_DOCUMENTS.
        """
        if self.document_variance is None:
            return None
        seed_half = student_quantile(self.seed_freedom, error) * math.sqrt(self.seed_variance)
        document_half = student_quantile(self.document_freedom, error) * math.sqrt(self.document_variance)
        return seed_half, document_half

    def interval(self, confidence: float = CONFIDENCE) -> Interval | None:
        """Return the value +- hypot(half width of the seeds, half width of the documents).

        None below MIN_DOCUMENTS. Banerjee (1960): it covers at least the confidence, whatever part of the
        variance is that of the seeds. A single t quantile with Satterthwaite's degrees of freedom covers too
        little, because few seeds tell little of their own variance. With 3 seeds and 0.9 of the variance from
        seeds, such a 95% interval covered 92.2%, and this one 96%.
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
    from scipy.special import stdtrit  # lazily: commands without intervals start sooner

    return -float(stdtrit(freedom, error / 2))


def p_beyond(estimate: Estimate, margin: float) -> float | None:
    """Return the one-sided p of the hypothesis that the truth is not beyond the margin.

    For a value of 0.05 and a margin of 0.02 the hypothesis is that the truth is at most 0.02; for -0.05 that
    it is at least -0.02. p is the number for which the nearer end of the interval with confidence 1 - 2p just
    reaches the margin. None without an interval.
    """
    if estimate.document_variance is None:
        return None
    excess = abs(estimate.value) - margin
    if excess <= 0:
        return 1.0
    import numpy as np

    # A bisection by hand, since for brentq `posenc compare` would have to import scipy.optimize as well.
    low_log_p = math.log(SMALLEST_P)
    high_log_p = math.log(0.5)
    for _ in range(BISECTIONS):
        log_p = (low_log_p + high_log_p) / 2
        two_sided_error = 2 * float(np.exp(log_p))
        half_widths = estimate.half_widths(two_sided_error)
        assert half_widths is not None
        half_width = math.hypot(*half_widths)
        if half_width < excess:  # the interval does not reach the margin: a smaller p will do
            high_log_p = log_p
        else:
            low_log_p = log_p
    return float(np.exp(high_log_p))


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation (n - 1) over seeds; None for a single seed."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1 or not math.isfinite(mean):
        return mean, None
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1))


def welch(value: float, parts: Sequence[tuple[float, float]], documents: DocumentPart) -> Estimate:
    """Return an estimate whose seeds vary by independent parts (Welch 1947).

    `parts` are variances, each with its degrees of freedom; `documents` is the part of the documents.
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
