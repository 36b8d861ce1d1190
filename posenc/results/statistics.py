"""Means, spreads and intervals. Every +- says what it is of: documents (test data) or seeds (training).

Sums are divided once at the end. The independent units of the test data are documents, or where the corpus
names at least MIN_GROUPS groups of them (folders, books) those: texts of one folder are alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

MIN_DOCUMENTS = 10  # fewer: no interval, it would promise more than it holds
FEW_DOCUMENTS = 30  # fewer: an interval, and callers warn
MIN_GROUPS = 20  # fewer: documents count as independent
SMALLEST_P = 1e-15
BISECTIONS = 40  # of the logarithm of a p, to 1e-10
Per = Literal["targets", "bytes"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, with what is uncertain about it: training (seeds) and test data (documents).

    Variances are of `value`, in its unit squared. The document part is the jackknife variance of the
    seed-averaged value. What a seed does to single documents is in both, which errs on the wide side.
    """

    value: float
    seed_variance: float  # 0 for one seed: then it is an estimate for this model only
    document_variance: float | None  # None below MIN_DOCUMENTS
    document_freedom: float  # effective number of documents (or groups) - 1
    seed_freedom: float = 1.0

    def halves(self, error: float) -> tuple[float, float] | None:
        """Return half the intervals of seeds alone (0 for one seed) and of documents alone, Student's t.

        `error` is how often they may miss the truth: 0.05 for 95% intervals. None below MIN_DOCUMENTS.
        """
        if self.document_variance is None:
            return None
        from scipy.special import stdtrit

        parts = (self.seed_freedom, self.seed_variance), (self.document_freedom, self.document_variance)
        seed, document = (-float(stdtrit(df, error / 2)) * math.sqrt(part) for df, part in parts)
        return seed, document

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """Return the value +- the root of the halves' sum of squares; None below MIN_DOCUMENTS.

        Banerjee (1960): at least the confidence asked for, whatever the share of the seeds. One t with
        Satterthwaite's degrees of freedom promises too much, as few seeds tell little of their own variance:
        with 3 seeds and the seeds' part at 0.9 of the variance a 95% interval covered 92.2%, this one 96%.
        """
        halves = self.halves(1 - confidence)
        if halves is None:
            return None
        half = math.hypot(*halves)
        return self.value - half, self.value + half


def p_beyond(estimates: Sequence[Estimate], margin: float) -> list[float | None]:
    """Return each one's one-sided p of the hypothesis that the truth is within the margin next to the value.

    The interval with 1 - 2p confidence just touches the margin. None without an interval.
    """
    import numpy as np
    from scipy.special import stdtrit

    sure = [i for i, one in enumerate(estimates) if one.document_variance is not None]
    some = [estimates[i] for i in sure]
    seed = np.sqrt([one.seed_variance for one in some])
    seed_freedom = np.array([one.seed_freedom for one in some])
    document = np.sqrt([one.document_variance or 0.0 for one in some])
    document_freedom = np.array([one.document_freedom for one in some])
    excess = np.abs([one.value for one in some]) - margin
    low, high = np.full(len(some), math.log(SMALLEST_P)), np.full(len(some), math.log(0.5))
    for _ in range(BISECTIONS if some else 0):
        middle = (low + high) / 2
        tail = np.exp(middle)
        half = np.hypot(stdtrit(seed_freedom, tail) * seed, stdtrit(document_freedom, tail) * document)
        low, high = np.where(half < excess, low, middle), np.where(half < excess, middle, high)
    found: list[float | None] = [None] * len(estimates)
    for i, p, above in zip(sure, np.exp(high), excess, strict=True):
        found[i] = float(p) if above > 0 else 1.0
    return found


def ratio_interval(
    sums: Sequence[float], counts: Sequence[float], groups: Sequence[int] | None = None
) -> tuple[float, float] | None:
    """Return the 95% interval of sum(sums) / sum(counts) over documents; None below MIN_DOCUMENTS.

    A jackknife-t: leave one document (or group) out at a time. The degrees of freedom are those of the
    effective number, (sum c)^2 / sum c^2 - 1, as a few long documents carry most of the counts: with 30 of
    log-normal length (sigma 1.5) a simulated 95% interval covered 92%, with n - 1 88%.
    """
    columns = {"document": range(len(sums)), "nats": sums, "targets": counts, "group": groups}
    (ratio,) = ratios_of([Sample(columns)], "targets")
    return Estimate(ratio.value, 0.0, *document_part([ratio])).interval()


@dataclass(frozen=True, eq=False)
class Ratio:
    """The loss of one record, sum by count, and what it is without one unit (document or group) each."""

    documents: int
    value: float
    left_out: np.ndarray  # (D,) in the order of documents or groups
    freedom: float  # effective number of units - 1


class Sample:
    """Sums and counts by document of one record (its `per_document`), and the ratios made from them."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = columns
        self.groups = len(set(columns.get("group") or ()))
        self._ratios: dict[tuple[Per, bool], Ratio] = {}

    def ratio(self, per: Per, by_group: bool = False) -> Ratio:
        """Return the loss in nats per token, or with per="bytes" in bits per byte; computed once.

        Raises ValueError where there is nothing to divide by (no bytes).
        """
        if (per, by_group) not in self._ratios:
            import numpy as np

            sums: np.ndarray = np.asarray(self.columns["nats"], dtype=np.float64)
            counts: np.ndarray = np.asarray(self.columns[per], dtype=np.float64)
            if by_group:
                _, inverse = np.unique(np.asarray(self.columns["group"]), return_inverse=True)
                sums, counts = np.bincount(inverse, weights=sums), np.bincount(inverse, weights=counts)
            elif (documents := self.columns["document"]) != sorted(documents):  # each comes once
                order = np.argsort(np.asarray(documents))
                sums, counts = sums[order], counts[order]
            counts = counts * (1.0 if per == "targets" else math.log(2))
            total, size = sums.sum(), counts.sum()
            if not size > 0:
                raise ValueError(f"no {per} to divide by")
            rest = size - counts
            left_out = np.divide(total - sums, rest, out=np.full(len(sums), np.nan), where=rest > 0)
            freedom = max(float(size**2 / (counts**2).sum()) - 1, 1.0)
            self._ratios[per, by_group] = Ratio(len(sums), float(total / size), left_out, freedom)
        return self._ratios[per, by_group]


def ratios_of(samples: Sequence[Sample], per: Per) -> list[Ratio]:
    """Return their ratios by group where every sample names at least MIN_GROUPS, else by document."""
    by_group = all(one.groups >= MIN_GROUPS for one in samples)
    return [one.ratio(per, by_group) for one in samples]


def difference(pairs: Sequence[tuple[Sample, Sample]], per: Per) -> Estimate:
    """Return a - b, paired by seed and document: `pairs` has (a, b) of each seed. Units as Sample.ratio.

    A document, of which both have the same, is left out of a and b at once, so what they share in it cancels.
    Of two tokenizers it is the difference of two ratios over the same documents.
    """
    ratios = ratios_of([one for pair in pairs for one in pair], per)
    a, b = ratios[::2], ratios[1::2]
    mean, spread = mean_and_spread([one.value - other.value for one, other in zip(a, b, strict=True)])
    return Estimate(
        mean,
        (spread or 0.0) ** 2 / len(pairs),
        *document_part(a, b),
        seed_freedom=max(len(pairs) - 1, 1),
    )


def welch(
    value: float, parts: Sequence[tuple[float, float]], documents: tuple[float | None, float]
) -> Estimate:
    """Return an estimate whose seeds vary by independent parts, each a variance and its freedom (1947).

    `documents` are the variance over documents and its degrees of freedom.
    """
    variance = sum(part for part, _ in parts)
    squares = sum(part**2 / freedom for part, freedom in parts)
    return Estimate(value, variance, *documents, seed_freedom=variance**2 / squares if squares else 1.0)


def document_part(a: Sequence[Ratio], b: Sequence[Ratio] = ()) -> tuple[float | None, float]:
    """Return the jackknife variance of mean(a) - mean(b), of the same units, and its degrees of freedom.

    The variance is None below MIN_DOCUMENTS; without `b` it is that of mean(a).
    """
    import numpy as np

    every = [*a, *b]
    left_out = np.mean([one.left_out for one in a], axis=0)
    if b:
        left_out = left_out - np.mean([one.left_out for one in b], axis=0)
    n, freedom = len(every[0].left_out), min(one.freedom for one in every)
    if every[0].documents < MIN_DOCUMENTS:
        return None, freedom
    return float((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum()), freedom


def on_shared_documents(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples cut to the documents that all have; an empty list where there is none."""
    lists = [one.columns["document"] for one in samples]
    if all(one is lists[0] or one == lists[0] for one in lists):
        return list(samples)
    shared = set(lists[0]).intersection(*lists)

    def cut(one: Sample) -> Sample:
        kept = [i for i, document in enumerate(one.columns["document"]) if document in shared]
        return Sample({key: [values[i] for i in kept] for key, values in one.columns.items()})

    return [cut(one) for one in samples] if shared else []


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation (n - 1) over seeds; None for a single seed."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1 or not math.isfinite(mean):
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
