"""Words for differences: the verdict on a change, and which rows of a column differ.

Margins are in bits per byte, so that a word means the same for every tokenizer, and were set before any
encoding was measured. Two rows are paired by seed and by document, and Holm-corrected; they are ranked only
where the corrected interval lies beyond the margin of "same".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from posenc.results.moderated import SEEDS, shared_variances
from posenc.results.schema import Metric
from posenc.results.statistics import (
    Estimate,
    Per,
    Ratio,
    Sample,
    difference,
    document_part,
    mean_and_spread,
    on_shared_documents,
    p_beyond,
    ratios_of,
)

CONFIDENCE = 0.95
SAME = 0.02  # bits per byte: nobody should choose an encoding for less
COLLAPSED = 0.5  # bits per byte
REFERENCE = 0.1  # bits per byte: a trained model is at least so much below the trigram reference
EFFECTIVE = 0.02  # nats per token: a loss so near its best is not harmed by its window

BETTER, SAME_WORD, WORSE, COLLAPSED_WORD = "better", "same", "worse", "collapsed"
MORE_SEEDS = "unclear (needs more seeds)"
MORE_DOCUMENTS = "unclear (needs more documents)"
Word = Literal["lower", "higher", "tie", "unclear"]
Mark = Literal["lowest", "tie", "unclear"]
Samples = Mapping[int, Sample]  # of a row by seed
Method = Literal["welch", "moderated", "documents"]  # documents: one seed, holds for these models only
METHODS: list[Method] = ["documents", "welch", "moderated"]  # of two rows the first one is said


@dataclass
class Pair:
    """Two rows of a column: a - b in bits per byte, over the seeds that both have."""

    a: int  # index of the row
    b: int
    rows: list[str]  # their labels
    seeds: list[int]
    difference: float | None = None  # null where they share no seed
    interval: list[float] | None = None  # at the level that Holm's correction leaves this pair
    p: float | None = None  # corrected; of the hypothesis that the truth is within the margin
    word: Word = "unclear"  # a is lower, higher, tied, or neither is certain


@dataclass
class AgainstBaseline:
    """A row minus the baseline at one window, on the same targets, over the seeds that both have."""

    difference: float  # in the comparison's metric
    ci95: list[float] | None  # of it, over seeds and documents (one seed: documents); not corrected
    seeds: list[int]
    word: Word  # the row is lower, higher, tied, or neither is certain; Holm-corrected over the column


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

    samples: list[Sample]
    ratios: list[Ratio]
    mean: float
    variance: float  # of the mean, over seeds; 0 for one seed
    freedom: float  # of that variance
    method: Method


def compare_with(
    samples: Sequence[Mapping[int, Sample] | None], reference: int | None, metric: Metric
) -> dict[int, Versus]:
    """Return each ranked row of a column against row `reference`, or against the lowest mean (None).

    `samples` has those of each row by seed; None: not ranked. Seeds are not paired: those of two encodings
    have nothing in common. Documents are. Holm (1979) over the R - 1 comparisons; against the lowest mean
    both sides count, since that row may be the lowest by luck (Hsu 1984: what may be wrong are the R - 1
    comparisons with the row that is truly best, on either side). The baseline itself is left out; {} below
    two rows or without shared documents.
    """
    rows = ranked_rows(samples)
    if len(rows) < 2 or reference not in {None, *rows}:
        return {}
    at = min(rows, key=lambda i: rows[i].mean) if reference is None else reference
    others = [i for i in rows if i != at]
    estimates = [unpaired(rows[i], rows[at]) for i in others]
    sides = 2 if reference is None else 1
    corrected, levels = _holm([None if p is None else sides * p for p in p_beyond(estimates, SAME)])
    unit = 1.0 if metric == "bpb" else _nats_per_token(rows[at].samples[0])
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
        rows[i] = RankedRow(every[place], ratios[place], mean, variance / counts[i], freedom, method)
    return rows


def unpaired(a: RankedRow, b: RankedRow) -> Estimate:
    """Return the mean of a minus that of b: seeds as Welch (1947), documents paired."""
    variance = a.variance + b.variance
    squares = a.variance**2 / a.freedom + b.variance**2 / b.freedom
    return Estimate(
        value=a.mean - b.mean,
        seeds=min(len(a.samples), len(b.samples)),
        seed_variance=variance or None,
        seed_freedom=variance**2 / squares if squares else math.inf,
        **document_part([*a.samples, *b.samples], a.ratios, b.ratios),
    )


def _nats_per_token(sample: Sample) -> float:
    """Return how many nats per token are one bit per byte; the same for all rows that share their targets."""
    return sample.ratio("targets").value / sample.ratio("bytes").value


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


def compare_pairs(
    labels: Sequence[str], samples: Sequence[Samples | None], only: int | None = None, chosen: bool = False
) -> list[Pair]:
    """Return every pair of a column, or those with the row `only`. None in `samples`: not ranked.

    Holm (1979) over all pairs of the column that have an interval, also where only some are asked for, unless
    the row was `chosen` before anybody looked at the numbers.
    """
    have = {i: sample for i, sample in enumerate(samples) if sample is not None}
    indices = list(combinations(have, 2))
    if only is not None:
        indices = [(min(only, i), max(only, i)) for i in have if i != only and only in have]
    pairs, estimates = [], []
    for a, b in indices:
        seeds = sorted(set(have[a]) & set(have[b]))
        estimate = _difference(have[a], have[b], seeds, "bytes")
        value = None if estimate is None else estimate.value
        pairs.append(Pair(a, b, [labels[a], labels[b]], seeds, value))
        estimates.append(estimate)
    count = len(pairs) if chosen else len(have) * (len(have) - 1) // 2
    _judge(pairs, estimates, unseen=count - len(pairs))
    return pairs


def _difference(a: Samples, b: Samples, seeds: Sequence[int], per: Per) -> Estimate | None:
    """Return a - b over the seeds; None without any, or where one shares no document."""
    both = [on_shared_documents([a[seed], b[seed]]) for seed in seeds]
    shared = [(one[0], one[1]) for one in both if one]
    return difference(shared, per) if shared and len(shared) == len(seeds) else None


def _judge(pairs: Sequence[Pair], estimates: Sequence[Estimate | None], unseen: int) -> None:
    """Set corrected p, interval and word of each pair.

    The smallest p is held against 0.05 / m, the next against 0.05 / (m - 1), until one fails; the rest keep
    that one's level. A tie is an interval at that level that lies within the margin.
    """
    have = [(pair, one) for pair, one in zip(pairs, estimates, strict=True) if one is not None]
    found = p_beyond([estimate for _, estimate in have], SAME)
    tested = [(min(1.0, 2 * p), *one) for p, one in zip(found, have, strict=True) if p is not None]
    tested.sort(key=lambda one: one[0])
    corrected = holm([p for p, _, _ in tested], unseen)
    level, failed = 0.0, False
    for rank, (p, pair, estimate) in enumerate(tested):
        if not failed:
            level = (1 - CONFIDENCE) / (len(tested) + unseen - rank)
            failed = p >= level
        low, high = estimate.interval(1 - level) or (0.0, 0.0)
        pair.p, pair.interval = corrected[rank], [low, high]
        if not failed:
            pair.word = "lower" if estimate.value < 0 else "higher"
        elif low >= -SAME and high <= SAME:
            pair.word = "tie"


def holm(p: Sequence[float], unseen: int = 0) -> list[float]:
    """Return Holm's corrected p, in the order given; `unseen` more, not computed, count as the largest."""
    corrected, so_far = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        so_far = max(so_far, min(1.0, (len(p) + unseen - rank) * p[i]))
        corrected[i] = so_far
    return corrected


def word_for(row: int, pair: Pair) -> Word:
    """Return the word of a pair as seen from one of its rows."""
    turned: dict[Word, Word] = {"lower": "higher", "higher": "lower"}
    return pair.word if pair.a == row else turned.get(pair.word, pair.word)


def surely_below(pairs: Sequence[Pair], row: int) -> list[int]:
    """Return the rows that are clearly lower than this one."""
    below = [pair.b for pair in pairs if pair.a == row and pair.word == "higher"]
    return below + [pair.a for pair in pairs if pair.b == row and pair.word == "lower"]


def marks(pairs: Sequence[Pair], lowest: int) -> dict[int, Mark]:
    """Return the mark of each row that is not clearly above the row `lowest`; the others have none."""
    found: dict[int, Mark] = {lowest: "lowest"}
    for pair in pairs:
        if lowest in (pair.a, pair.b) and (word := word_for(lowest, pair)) != "lower":
            found[pair.b if pair.a == lowest else pair.a] = "tie" if word == "tie" else "unclear"
    return found


def against_baseline(
    labels: Sequence[str], samples: Sequence[Samples | None], baseline: int, metric: Metric
) -> dict[int, AgainstBaseline]:
    """Return the difference of each row that may be compared with the baseline."""
    found = {}
    for pair in compare_pairs(labels, samples, baseline, chosen=True):
        other = pair.b if pair.a == baseline else pair.a
        ours, theirs = samples[other] or {}, samples[baseline] or {}
        if estimate := _difference(ours, theirs, pair.seeds, "bytes" if metric == "bpb" else "targets"):
            word = word_for(other, pair)
            found[other] = AgainstBaseline(estimate.value, interval_of(estimate), list(pair.seeds), word)
    return found
