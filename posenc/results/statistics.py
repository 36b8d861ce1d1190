"""Means, spreads and intervals. Every +- says what it is of: documents (test data) or seeds (training).

Sums are divided once at the end. The independent units of the test data are documents, or where the corpus
names at least MIN_GROUPS groups of them (folders, books) those: texts of one folder are alike.
Words for differences follow: the verdict on a change, which rows of a column differ. Their margins are in
bits per byte, so that a word means the same for every tokenizer, and were set before any encoding was
measured. A change is paired by seed and by document; two rows by document alone.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

CONFIDENCE = 0.95
MIN_DOCUMENTS = 10  # fewer: no interval, it would promise more than it holds
FEW_DOCUMENTS = 30  # fewer: an interval, and callers warn
MIN_GROUPS = 20  # fewer: documents count as independent
SMALLEST_P = 1e-15
BISECTIONS = 40  # of the logarithm of a p, to 1e-10
Per = Literal["targets", "bytes"]
Sample = Mapping[str, Any]  # sums and counts by document of one record, its `per_document`


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

    def interval(self, confidence: float = CONFIDENCE) -> list[float] | None:
        """Return the value +- the root of the halves' sum of squares; None below MIN_DOCUMENTS.

        Banerjee (1960): at least the confidence asked for, whatever the share of the seeds. One t with
        Satterthwaite's degrees of freedom promises too much, as few seeds tell little of their own variance:
        with 3 seeds and the seeds' part at 0.9 of the variance a 95% interval covered 92.2%, this one 96%.
        """
        halves = self.halves(1 - confidence)
        if halves is None:
            return None
        half = math.hypot(*halves)
        return [self.value - half, self.value + half]


def p_beyond(one: Estimate, margin: float) -> float | None:
    """Return the one-sided p of the hypothesis that the truth is within the margin next to the value.

    The interval with 1 - 2p confidence just touches the margin. None without an interval.
    """
    import numpy as np

    excess, low, high = abs(one.value) - margin, math.log(SMALLEST_P), math.log(0.5)
    if one.document_variance is None:
        return None
    if excess <= 0:
        return 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        half = math.hypot(*(one.halves(2 * float(np.exp(middle))) or ()))
        low, high = (low, middle) if half < excess else (middle, high)
    return float(np.exp(high))


def ratio_interval(
    sums: Sequence[float], counts: Sequence[float], groups: Sequence[int] | None = None
) -> list[float] | None:
    """Return the 95% interval of sum(sums) / sum(counts) over documents; None below MIN_DOCUMENTS.

    A jackknife-t: leave one document (or group) out at a time. The degrees of freedom are those of the
    effective number, (sum c)^2 / sum c^2 - 1, as a few long documents carry most of the counts: with 30 of
    log-normal length (sigma 1.5) a simulated 95% interval covered 92%, with n - 1 88%.
    """
    columns = {"document": range(len(sums)), "nats": sums, "targets": counts, "group": groups}
    (ratio,) = ratios_of([columns], "targets")
    return Estimate(ratio.value, 0.0, *document_part([ratio])).interval()


@dataclass(frozen=True, eq=False)
class Ratio:
    """The loss of one record, sum by count, and what it is without one unit (document or group) each."""

    documents: int
    value: float
    left_out: np.ndarray  # (D,) in the order of documents or groups
    freedom: float  # effective number of units - 1


def ratio_of(sample: Sample, per: Per, by_group: bool = False) -> Ratio:
    """Return the loss in nats per token, or with per="bytes" in bits per byte.

    Raises ValueError where there is nothing to divide by (no bytes).
    """
    import numpy as np

    sums: np.ndarray = np.asarray(sample["nats"], dtype=np.float64)
    counts: np.ndarray = np.asarray(sample[per], dtype=np.float64)
    if by_group:
        _, inverse = np.unique(np.asarray(sample["group"]), return_inverse=True)
        sums, counts = np.bincount(inverse, weights=sums), np.bincount(inverse, weights=counts)
    elif (documents := sample["document"]) != sorted(documents):  # each comes once
        order = np.argsort(np.asarray(documents))
        sums, counts = sums[order], counts[order]
    counts = counts * (1.0 if per == "targets" else math.log(2))
    total, size = sums.sum(), counts.sum()
    if not size > 0:
        raise ValueError(f"no {per} to divide by")
    rest = size - counts
    left_out = np.divide(total - sums, rest, out=np.full(len(sums), np.nan), where=rest > 0)
    freedom = max(float(size**2 / (counts**2).sum()) - 1, 1.0)
    return Ratio(len(sums), float(total / size), left_out, freedom)


def ratios_of(samples: Sequence[Sample], per: Per) -> list[Ratio]:
    """Return their ratios by group where every sample names at least MIN_GROUPS, else by document."""
    by_group = all(len(set(one.get("group") or ())) >= MIN_GROUPS for one in samples)
    return [ratio_of(one, per, by_group) for one in samples]


def difference(pairs: Sequence[tuple[Sample, Sample]], per: Per) -> Estimate:
    """Return a - b, paired by seed and document: `pairs` has (a, b) of each seed. Units as ratio_of.

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
    lists = [one["document"] for one in samples]
    if all(one == lists[0] for one in lists):
        return list(samples)
    shared = set(lists[0]).intersection(*lists)

    def cut(one: Sample) -> Sample:
        kept = [i for i, document in enumerate(one["document"]) if document in shared]
        return {key: [values[i] for i in kept] for key, values in one.items()}

    return [cut(one) for one in samples] if shared else []


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample standard deviation (n - 1) over seeds; None for a single seed."""
    mean = math.fsum(values) / len(values)
    if len(values) == 1 or not math.isfinite(mean):
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


# --- words

SAME = 0.02  # bits per byte: nobody should choose an encoding for less
COLLAPSED = 0.5  # bits per byte
REFERENCE = 0.1  # bits per byte: a trained model is at least so much below the trigram reference

BETTER, SAME_WORD, WORSE, COLLAPSED_WORD = "better", "same", "worse", "collapsed"
MORE_SEEDS = "unclear (needs more seeds)"
MORE_DOCUMENTS = "unclear (needs more documents)"
Method = Literal["welch", "moderated", "documents"]  # documents: one seed, holds for these models only
METHODS: list[Method] = ["documents", "welch", "moderated"]  # of two rows the first one is said


def verdict(change: Estimate) -> str:
    """Return the word for a change against the crop line, in bits per byte; lower is better.

    Where the interval crosses a margin, `unclear`, with what would narrow it: documents for one seed and
    below MIN_DOCUMENTS (then there is no interval), else whichever of the two is the wider.
    """
    interval = change.interval()
    if interval is None:
        return MORE_DOCUMENTS
    low, high = interval
    if low > SAME:
        return COLLAPSED_WORD if low > COLLAPSED else WORSE
    if high < -SAME:
        return BETTER
    if low >= -SAME and high <= SAME:
        return SAME_WORD
    seeds, documents = change.halves(1 - CONFIDENCE) or (0.0, 0.0)
    return MORE_SEEDS if seeds > documents else MORE_DOCUMENTS


def short_verdict(word: str) -> str:
    """Return the word without its reason, as it fits a cell."""
    return word.partition(" ")[0]


@dataclass
class Versus:
    """A row against the best row (or the baseline) of a column."""

    difference: float  # row - reference, nats per token or bits per byte: the comparison's metric
    ci95: list[float] | None  # of it, over seeds and documents; two-sided, as wide as the correction asks
    p: float | None  # corrected; of the hypothesis that the truth is within SAME, or on the other side
    word: Literal["best", "tied", "above", "below"]  # tied: not resolved; below: only against a baseline
    method: Method


@dataclass(frozen=True)
class RankedRow:
    """A ranked row of a column, in bits per byte."""

    ratios: list[Ratio]
    mean: float
    variance: float  # of the mean, over seeds; 0 for one seed
    freedom: float  # of that variance
    method: Method


def compare_with(
    samples: Sequence[Mapping[int, Sample] | None], reference: int | None, metric: str
) -> dict[int, Versus]:
    """Return each ranked row of a column against row `reference`, or against the lowest mean (None).

    `samples` has those of each row by seed; None: not ranked. Seeds are not paired, as those of two encodings
    have nothing in common; documents are. Holm (1979) over the R - 1 comparisons, one-sided; against the
    lowest mean both sides count, since that row may be the lowest by luck (Hsu 1984). The baseline itself is
    left out; {} below two rows or without shared documents.
    """
    rows = ranked_rows(samples)
    if len(rows) < 2 or reference not in {None, *rows}:
        return {}
    at = min(rows, key=lambda i: rows[i].mean) if reference is None else reference
    others = [i for i in rows if i != at]
    estimates = [unpaired(rows[i], rows[at]) for i in others]
    sides = 2 if reference is None else 1
    p_values = [p_beyond(one, SAME) for one in estimates]
    corrected, levels = _holm([None if p is None else sides * p for p in p_values])
    columns = next(iter((samples[at] or {}).values()))  # of targets that all rows share
    unit = 1.0 if metric == "bpb" else math.log(2) * sum(columns["bytes"]) / sum(columns["targets"])
    found = {}
    if reference is None:
        found[at] = Versus(0.0, None, None, "best", rows[at].method)
    for i, one, p, level in zip(others, estimates, corrected, levels, strict=True):
        interval = one.interval(1 - level)
        word: Literal["tied", "above", "below"] = "tied"
        if p is not None and p < 1 - CONFIDENCE:
            word = "above" if one.value > 0 else "below"
        found[i] = Versus(
            difference=unit * one.value,
            ci95=None if interval is None else [unit * interval[0], unit * interval[1]],
            p=p,
            word=word,
            method=min(rows[i].method, rows[at].method, key=METHODS.index),
        )
    return found


def ranked_rows(samples: Sequence[Mapping[int, Sample] | None]) -> dict[int, RankedRow]:
    """Return the rows that are ranked, cut to the documents that all of them have."""
    counts = {i: len(of) for i, of in enumerate(samples) if of}
    every = on_shared_documents([one for of in samples if of for one in of.values()])
    if not every:
        return {}
    left = iter(ratios_of(every, "bytes"))
    ratios = {i: list(itertools.islice(left, count)) for i, count in counts.items()}
    values = {i: tuple(one.value for one in some) for i, some in ratios.items()}
    several = [i for i in values if len(values[i]) >= SEEDS]
    shared = shared_variances(tuple(values[i] for i in several))
    moderated = dict(zip(several, shared, strict=True)) if shared else {}
    rows = {}
    for i, some in ratios.items():
        mean, spread = mean_and_spread(values[i])
        method: Method = "documents" if spread is None else "moderated" if i in moderated else "welch"
        variance, freedom = moderated.get(i, ((spread or 0.0) ** 2, max(counts[i] - 1, 1)))
        rows[i] = RankedRow(some, mean, variance / counts[i], freedom, method)
    return rows


def unpaired(a: RankedRow, b: RankedRow) -> Estimate:
    """Return the mean of a minus that of b: seeds as Welch (1947), documents paired."""
    parts = [(one.variance, one.freedom) for one in (a, b)]
    return welch(a.mean - b.mean, parts, document_part(a.ratios, b.ratios))


def _holm(p: Sequence[float | None]) -> tuple[list[float | None], list[float]]:
    """Return corrected p and the level of each one's interval, in the order given.

    The smallest p is held against 0.05 / m, the next against 0.05 / (m - 1), until one fails; the rest keep
    that one's level.
    """
    order = sorted((one, i) for i, one in enumerate(p) if one is not None)
    corrected: list[float | None] = [None] * len(p)
    levels, level, so_far = [1 - CONFIDENCE] * len(p), 0.0, 0.0
    for rank, (one, i) in enumerate(order):
        if so_far < 1 - CONFIDENCE:
            level = (1 - CONFIDENCE) / (len(order) - rank)
        so_far = max(so_far, min(1.0, (len(order) - rank) * one))
        corrected[i], levels[i] = so_far, level
    return corrected, levels


# --- seed variances shared between rows: empirical Bayes (Smyth 2004, limma's `eBayes(trend=)`)
# Three seeds tell little of their own variance: Student's t has two degrees of freedom, and 28 comparisons
# need 24 standard errors. The other rows tell what is usual, and rows that lose more also vary more.

ROWS, SEEDS = 8, 3  # fewer: each row has its own variance alone
FLOOR = 0.02  # bits per byte above the best: the trend begins here
MOST_PRIOR = 3.0  # degrees of freedom that the other rows stand for
EXPERIMENTS = 600  # of the check
LEAST_COVERAGE, MOST_FALSE = 0.90, 0.05
Shared = tuple[tuple[float, float], ...]  # variance of one seed and its degrees of freedom, by row


@functools.lru_cache(maxsize=64)
def shared_variances(rows: tuple[tuple[float, ...], ...]) -> Shared | None:
    """Return the variance of each row's seeds and its degrees of freedom; None where rows must not share.

    `rows` has the loss of each seed in bits per byte. A row's variance is the mean of its own and of the
    trend's, weighted by degrees of freedom: three seeds that agree by luck get what is usual for rows like
    theirs. None below ROWS rows or SEEDS seeds, where the check fails, or where most rows' seeds are equal.
    """
    import numpy as np

    if len(rows) < ROWS or min(map(len, rows)) < SEEDS:
        return None
    means, counts = np.array([np.mean(row) for row in rows]), np.array([len(row) for row in rows])
    own = np.array([np.var(row, ddof=1) for row in rows])
    if not np.median(own) > 0:
        return None
    size = np.log(np.maximum(means - means.min(), FLOOR))
    variances, freedom = _moderate(own, size, counts - 1)
    if not _holds(variances, freedom, size, counts, int(means.argmin())):
        return None
    return tuple(zip(variances.tolist(), freedom.tolist(), strict=True))


def _moderate(own: np.ndarray, size: np.ndarray, freedom: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return variances and degrees of freedom of own variances (..., R), with a trend over `size` (R,).

    The trend is a line of log variance that never falls. How much the rows scatter around it beyond chance
    gives the prior's degrees of freedom, at most MOST_PRIOR; t counts half of them, as few rows tell them
    badly. With all of them, as limma has it, intervals covered 92% of the study's held-out seeds, so 95%.
    """
    import numpy as np
    from scipy.special import digamma, polygamma

    own = np.maximum(own, 1e-4 * np.median(own, axis=-1, keepdims=True))
    logs = np.log(own) - digamma(freedom / 2) + np.log(freedom / 2)
    centred = size - size.mean()
    slope = np.maximum((logs * centred).sum(-1, keepdims=True) / max((centred**2).sum(), 1e-12), 0.0)
    trend = logs.mean(-1, keepdims=True) + slope * centred
    scatter = ((logs - trend) ** 2).sum(-1, keepdims=True) / (len(size) - 2)
    halves = np.geomspace(MOST_PRIOR / 2, 0.01, 200)  # trigamma rises as its argument falls
    prior = 2 * np.interp(scatter - polygamma(1, freedom / 2).mean(), polygamma(1, halves), halves)
    usual = np.exp(trend + digamma(prior / 2) - np.log(prior / 2))
    shared = (prior * usual + freedom * own) / (prior + freedom)
    return shared, np.broadcast_to(prior / 2 + freedom, own.shape)


def _holds(variances: np.ndarray, known: np.ndarray, size: np.ndarray, counts: np.ndarray, best: int) -> bool:
    """Return whether shared variances give right intervals, by simulation from the records at hand.

    In each of EXPERIMENTS every row has a true variance drawn from what is known of it, and new seeds. Of the
    differences from the best row 95% intervals must cover LEAST_COVERAGE, and any of the corrected ones be
    too high at most in MOST_FALSE. So little is known that the drawn variances scatter more than true ones:
    where the check gave 91%, intervals covered 94%. A stricter one would turn with every row that is added.
    """
    import numpy as np
    from scipy.special import stdtr

    rng = np.random.default_rng(0)
    shape, freedom = (EXPERIMENTS, len(counts)), counts - 1
    truth = variances * known / rng.chisquare(known, shape)
    error = rng.normal(size=shape) * np.sqrt(truth / counts)
    variance, known = _moderate(truth * rng.chisquare(freedom, shape) / freedom, size, freedom)
    parts = variance / counts
    own, theirs = parts, parts[:, [best]]
    joined = (own + theirs) ** 2 / (own**2 / known + theirs**2 / known[:, [best]])
    others = np.arange(len(counts)) != best
    apart = (error - error[:, [best]]) / np.sqrt(own + theirs)
    above = stdtr(joined, -apart)[:, others]
    covered = ((above > 0.025) & (above < 0.975)).mean()
    false = (above < 0.025 / others.sum()).any(axis=1).mean()
    return bool(covered >= LEAST_COVERAGE and false <= MOST_FALSE)
