"""Means over seeds, and intervals that join what seeds and what documents leave uncertain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
SMALLEST_P = 1e-15
BISECTIONS = 40  # of the logarithm of a p: to 1e-10 of it

Interval = tuple[float, float]  # low, high
# The variance over documents and its degrees of freedom. The variance is None where documents are too few.
DocumentPart = tuple[float | None, float]


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

    def halves(self, error: float) -> tuple[float, float] | None:
        """Return half the interval of the seeds alone (0 for one seed) and of the documents alone.

        Student's t. `error` is how often each may miss the truth: 0.05 for 95% intervals. None below
        MIN_DOCUMENTS.
        """
        if self.document_variance is None:
            return None
        from scipy.special import stdtrit

        seed_quantile = -float(stdtrit(self.seed_freedom, error / 2))
        document_quantile = -float(stdtrit(self.document_freedom, error / 2))
        seed_half = seed_quantile * math.sqrt(self.seed_variance)
        document_half = document_quantile * math.sqrt(self.document_variance)
        return seed_half, document_half

    def interval(self, confidence: float = CONFIDENCE) -> Interval | None:
        """Return the value +- the root of the halves' sum of squares; None below MIN_DOCUMENTS.

        Banerjee (1960): it covers at least the confidence, whatever the share of the seeds. One t with
        Satterthwaite's degrees of freedom promises too much, because few seeds tell little of their own
        variance: with 3 seeds and 0.9 of the variance theirs, a 95% interval covered 92.2%, this one 96%.
        """
        halves = self.halves(1 - confidence)
        if halves is None:
            return None
        half = math.hypot(*halves)
        return self.value - half, self.value + half


def p_beyond(estimate: Estimate, margin: float) -> float | None:
    """Return the one-sided p of the hypothesis that the truth lies within the margin next to the value.

    The interval with confidence 1 - 2p just touches the margin. None without an interval.
    """
    if estimate.document_variance is None:
        return None
    excess = abs(estimate.value) - margin
    if excess <= 0:
        return 1.0
    import numpy as np

    # By hand: for brentq `posenc compare` would import scipy.optimize, beside scipy.special, which it needs.
    low = math.log(SMALLEST_P)
    high = math.log(0.5)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        halves = estimate.halves(2 * float(np.exp(middle)))
        assert halves is not None
        if math.hypot(*halves) < excess:
            high = middle
        else:
            low = middle
    return float(np.exp(high))


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
    variance = sum(part for part, _ in parts)
    squares = sum(part**2 / freedom for part, freedom in parts)
    seed_freedom = variance**2 / squares if squares else 1.0
    return Estimate(value, variance, *documents, seed_freedom=seed_freedom)
