"""Words for differences: the verdict on a change, and which rows of a column differ.

Margins are in bits per byte, so that a word means the same for every tokenizer, and were set before any
encoding was measured. A change is paired by seed and by document; two rows by document alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from posenc.results.schema import Metric
from posenc.results.statistics import (
    Estimate,
    Ratio,
    Sample,
    document_part,
    mean_and_spread,
    on_shared_documents,
    p_beyond,
    ratios_of,
    welch,
)

if TYPE_CHECKING:
    import numpy as np

CONFIDENCE = 0.95
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
    interval = change.interval(CONFIDENCE)
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


def interval_of(estimate: Estimate) -> list[float] | None:
    """Return the 95% interval as JSON holds it."""
    interval = estimate.interval(CONFIDENCE)
    return None if interval is None else list(interval)


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
    samples: Sequence[Mapping[int, Sample] | None], reference: int | None, metric: Metric
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
    corrected, levels = _holm([None if p is None else sides * p for p in p_beyond(estimates, SAME)])
    unit = 1.0 if metric == "bpb" else _nats_per_token(samples[at] or {})
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
    ratios = ratios_of(every, "bytes")
    places, start = {}, 0
    for i, count in counts.items():
        places[i] = slice(start, start + count)
        start += count
    values = {i: tuple(one.value for one in ratios[place]) for i, place in places.items()}
    several = [i for i in values if len(values[i]) >= SEEDS]
    shared = shared_variances(tuple(values[i] for i in several))
    moderated = dict(zip(several, shared, strict=True)) if shared else {}
    rows = {}
    for i, place in places.items():
        mean, spread = mean_and_spread(values[i])
        method: Method = "documents" if spread is None else "moderated" if i in moderated else "welch"
        variance, freedom = moderated.get(i, ((spread or 0.0) ** 2, max(counts[i] - 1, 1)))
        rows[i] = RankedRow(ratios[place], mean, variance / counts[i], freedom, method)
    return rows


def unpaired(a: RankedRow, b: RankedRow) -> Estimate:
    """Return the mean of a minus that of b: seeds as Welch (1947), documents paired."""
    parts = [(one.variance, one.freedom) for one in (a, b)]
    return welch(a.mean - b.mean, parts, document_part(a.ratios, b.ratios))


def _nats_per_token(row: Mapping[int, Sample]) -> float:
    """Return how many nats per token are one bit per byte, on targets that all rows share."""
    columns = next(iter(row.values())).columns
    return math.log(2) * sum(columns["bytes"]) / sum(columns["targets"])


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
