"""Means, spreads and intervals. Every +- says what it is of: documents (test data) or seeds (training).

Sums are divided once at the end; documents, not tokens, are the independent units of the test data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

MIN_DOCUMENTS = 30  # fewer documents: no interval, it would promise more than it holds
SMALLEST_P = 1e-15
BISECTIONS = 40  # of the logarithm of a p, to 1e-10
Per = Literal["targets", "bytes"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, with what is uncertain about it: training (seeds) and test data (documents).

    Variances are of `value`, in its unit squared. The seed part is s^2 / S over the seeds' own values; the
    document part the jackknife variance of the seed-averaged value. What a seed does to single documents is
    in both, which errs on the wide side.
    """

    value: float
    seeds: int
    documents: int
    seed_variance: float | None  # None for one seed: then it is an estimate for this model only
    document_variance: float | None  # None below 30 documents
    document_freedom: float  # effective number of documents - 1

    def halves(self, error: float) -> tuple[float, float] | None:
        """Return half the intervals of seeds alone (0 for one seed) and of documents alone, Student's t.

        `error` is how often they may miss the truth: 0.05 for 95% intervals. None below 30 documents.
        """
        if self.document_variance is None:
            return None
        from scipy.special import stdtrit

        document = -float(stdtrit(self.document_freedom, error / 2)) * math.sqrt(self.document_variance)
        if self.seed_variance is None:
            return 0.0, document
        return -float(stdtrit(self.seeds - 1, error / 2)) * math.sqrt(self.seed_variance), document

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """Return the value +- the root of the halves' sum of squares; None below 30 documents.

        Banerjee (1960): at least the confidence asked for, whatever the share of the seeds. One t with
        Satterthwaite's degrees of freedom promises too much, as few seeds tell little of their own variance:
        with 3 seeds and the seeds' part at 0.9 of the variance a 95% interval covered 92.2%, and the 99.7%
        interval that six rows need after correction 97.8%; this one 96% and 99.8%.
        """
        halves = self.halves(1 - confidence)
        if halves is None:
            return None
        half = math.hypot(*halves)
        return self.value - half, self.value + half


def p_beyond(estimates: Sequence[Estimate], margin: float) -> list[float | None]:
    """Return each one's two-sided p of the hypothesis that the truth is within +-margin.

    The interval with 1 - p confidence just touches the margin. None below 30 documents; not below SMALLEST_P.
    """
    import numpy as np
    from scipy.special import stdtrit

    sure = [i for i, one in enumerate(estimates) if one.document_variance is not None]
    some = [estimates[i] for i in sure]
    seed = np.sqrt([one.seed_variance or 0.0 for one in some])
    seed_freedom = np.array([max(one.seeds - 1, 1) for one in some])  # of one seed the variance is 0
    document = np.sqrt([one.document_variance or 0.0 for one in some])
    document_freedom = np.array([one.document_freedom for one in some])
    excess = np.abs([one.value for one in some]) - margin
    low, high = np.full(len(some), math.log(SMALLEST_P)), np.zeros(len(some))
    for _ in range(BISECTIONS if some else 0):
        middle = (low + high) / 2
        tail = np.exp(middle) / 2
        half = np.hypot(stdtrit(seed_freedom, tail) * seed, stdtrit(document_freedom, tail) * document)
        low, high = np.where(half < excess, low, middle), np.where(half < excess, middle, high)
    found: list[float | None] = [None] * len(estimates)
    for i, p, above in zip(sure, np.exp(high), excess, strict=True):
        found[i] = float(p) if above > 0 else 1.0
    return found


def ratio_interval(
    sums: Sequence[float], counts: Sequence[float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """Return the interval of sum(sums) / sum(counts) over documents; None below 30 documents.

    A jackknife-t: leave one document out at a time, Student's t. The degrees of freedom are those of the
    effective number of documents, (sum c)^2 / sum c^2 - 1, as a few long documents carry most of the counts:
    with 30 documents of log-normal length (sigma 1.5) a simulated 95% interval covered 92%, with n - 1 88%.
    `sums` and `counts` have one entry a document, in the same order. Units: those of sums by those of counts.
    """
    assert len(sums) == len(counts) and all(count > 0 for count in counts)
    if len(sums) < MIN_DOCUMENTS:
        return None
    import numpy as np

    s, c = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    value = float(s.sum() / c.sum())
    left_out = (s.sum() - s) / (c.sum() - c)
    return Estimate(value, 1, len(s), None, _jackknife(left_out), _freedom(c)).interval(confidence)


@dataclass(frozen=True, eq=False)
class Ratio:
    """The loss of one record, sum by count, and what it is without one document each."""

    documents: np.ndarray  # (D,) indices, rising
    value: float
    left_out: np.ndarray  # (D,)
    freedom: float  # effective number of documents - 1


class Sample:
    """Sums and counts by document of one record (its `per_document`), and the ratios made from them."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = columns
        self._ratios: dict[Per, Ratio] = {}

    def ratio(self, per: Per) -> Ratio:
        """Return the loss in nats per token, or with per="bytes" in bits per byte; computed once.

        Raises ValueError where there is nothing to divide by (no bytes).
        """
        if per not in self._ratios:
            import numpy as np

            order = np.argsort(self.columns["document"])
            documents = np.asarray(self.columns["document"])[order]
            sums = np.asarray(self.columns["nats"], dtype=np.float64)[order]
            scale = 1.0 if per == "targets" else math.log(2)
            counts = np.asarray(self.columns[per], dtype=np.float64)[order] * scale
            total, size = sums.sum(), counts.sum()
            if not size > 0:
                raise ValueError(f"no {per} to divide by")
            rest = size - counts
            left_out = np.divide(total - sums, rest, out=np.full(len(sums), np.nan), where=rest > 0)
            self._ratios[per] = Ratio(documents, float(total / size), left_out, _freedom(counts))
        return self._ratios[per]


def difference(pairs: Sequence[tuple[Sample, Sample]], per: Per) -> Estimate:
    """Return a - b, averaged over seeds: `pairs` has (a, b) of each seed. Units and errors as Sample.ratio.

    A document is left out of a and b at once, so what they share in it cancels. Where both scored the same
    targets this is the paired difference; where they did not (two tokenizers) it is the difference of two
    ratios over the same documents.
    """
    import numpy as np

    ratios = [(a.ratio(per), b.ratio(per)) for a, b in pairs]
    every = [one for pair in ratios for one in pair]
    documents, lists = every[0].documents, [one.documents for one in every]
    if any(one is not documents and not np.array_equal(one, documents) for one in lists):
        documents = np.unique(np.concatenate(lists))
    a, b = (np.array([_over(pair[i], documents) for pair in ratios]).mean(axis=0) for i in (0, 1))
    mean, spread = mean_and_spread([a.value - b.value for a, b in ratios])
    return Estimate(
        value=mean,
        seeds=len(pairs),
        documents=len(documents),
        seed_variance=None if spread is None else spread**2 / len(pairs),
        document_variance=_jackknife(a - b) if min(map(len, lists)) >= MIN_DOCUMENTS else None,
        document_freedom=min(one.freedom for one in every),
    )


def _over(one: Ratio, documents: np.ndarray) -> np.ndarray:
    """Return the values without one of these documents each; those that it does not have change nothing."""
    import numpy as np

    if len(one.documents) == len(documents):
        return one.left_out
    left_out = np.full(len(documents), one.value)
    left_out[np.searchsorted(documents, one.documents)] = one.left_out
    return left_out


def on_shared_documents(a: Sample, b: Sample) -> tuple[Sample, Sample] | None:
    """Return both cut to the documents that both have; None where there is none."""
    if a.columns["document"] == b.columns["document"]:
        return a, b
    shared = set(a.columns["document"]) & set(b.columns["document"])
    if not shared:
        return None

    def cut(one: Sample) -> Sample:
        kept = [i for i, document in enumerate(one.columns["document"]) if document in shared]
        return Sample({key: [values[i] for i in kept] for key, values in one.columns.items()})

    return cut(a), cut(b)


def same_targets(a: Sample, b: Sample) -> bool:
    """Return whether two samples count the same targets and bytes of the same documents."""
    keys = ("document", "targets", "bytes")
    ours, theirs = (sorted(zip(*(one.columns[key] for key in keys), strict=True)) for one in (a, b))
    return ours == theirs


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation (n - 1) over seeds; None for a single seed."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1 or not math.isfinite(mean):
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def _jackknife(left_out: np.ndarray) -> float:
    """Return the jackknife variance of an estimate from its values without one document each: (D,)."""
    n = len(left_out)
    return float((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum())


def _freedom(counts: np.ndarray) -> float:
    """Return the effective number of documents - 1, from the counts (D,); at least 1."""
    return max(float(counts.sum() ** 2 / (counts**2).sum()) - 1, 1.0)
