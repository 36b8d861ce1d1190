"""Ranks within a column: each row against the best row, or against a baseline.

Two rows are compared by the difference of their losses, or of their changes against T, in bits per byte.
Documents are paired, since both rows are measured on the same ones. Seeds are not: a seed that is good for
one encoding is not for another (the correlation was +0.09 and -0.02 in the study).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Literal

from posenc.results.statistics.documents import (
    Ratio,
    Sample,
    change_of,
    document_part,
    on_shared_documents,
    ratios_of,
)
from posenc.results.statistics.intervals import (
    CONFIDENCE,
    Estimate,
    Interval,
    mean_and_spread,
    p_beyond,
    welch,
)
from posenc.results.statistics.shared_variance import (
    LEAST_SEEDS,
    SeedVariance,
    predicted_variances,
    shared_variances,
)
from posenc.results.statistics.verdicts import SAME_MARGIN, Needs

# From what the variance over seeds of a row is known:
# welch      its own seeds
# moderated  its own seeds and the other rows
# predicted  the other rows alone, for a row with one seed
# documents  nothing: the interval is over documents, and holds for these models alone
Method = Literal["welch", "moderated", "predicted", "documents"]
# If the two rows of a difference have different methods, the one that comes first here is named.
METHODS: tuple[Method, ...] = ("documents", "predicted", "welch", "moderated")
Word = Literal["best", "tied", "unresolved", "above", "below"]
Samples = Mapping[int, Sample]  # of a row, by seed
Pairs = Mapping[int, tuple[Sample, Sample]]  # of a row, by seed: at a window, and at its crop line


@dataclass(frozen=True)
class Versus:
    """A row against the best row (or the baseline) of a column."""

    difference: float  # row - reference, nats per token or bits per byte: the comparison's metric
    ci95: Interval | None  # of the difference, over seeds and documents; two-sided, widened by the correction
    p: float | None  # corrected, two-sided; that the truth is within SAME_MARGIN, or has the other sign
    word: Word  # tied: equal, or ci95 within SAME_MARGIN; unresolved: it is too wide; below: of a baseline
    method: Method
    needs: Needs | None = None  # whether more seeds or more documents would settle what is unresolved


@dataclass(frozen=True)
class RankedRow:
    """A ranked row of a column, in bits per byte."""

    ratios: list[Ratio]  # of its seeds
    mean: float
    variance: float  # of the mean, over seeds; 0 for one seed if no row has several
    freedom: float  # of that variance
    method: Method


def compare_with(samples: Sequence[Samples | None], reference: int | None, metric: str) -> dict[int, Versus]:
    """Compare each ranked row of a column with row `reference`, or with the row of the lowest mean (None).

    `samples` has the sums by document of each row's seeds; None: the row is not ranked. The result has no
    entry for `reference`, and none at all with fewer than two rows or without shared documents.

    Holm (1979) corrects for the R - 1 comparisons. Both signs count: the row of the lowest mean may be the
    lowest by luck (Hsu 1984), and nothing says on which side of a baseline a row should be. A row with one
    seed can have the lowest mean of a column only if no row has several seeds: otherwise, in a simulated
    table of equal rows, 22% of tables had a false `above`.
    """
    all_samples = [sample for row in samples if row for sample in row.values()]
    return _compared(ranked_rows(samples), reference, _unit(all_samples, metric))


def compare_changes(pairs: Sequence[Pairs | None], metric: str) -> dict[int, Versus]:
    """Compare each ranked row of a column with the lowest change, as `compare_with` does for losses."""
    all_samples = [sample for row in pairs if row for sample, _ in row.values()]
    return _compared(ranked_changes(pairs), None, _unit(all_samples, metric))


def _compared(rows: Mapping[int, RankedRow], reference: int | None, unit: float) -> dict[int, Versus]:
    """Compare rows with row `reference`, or with the lowest mean (None); multiply differences by `unit`."""
    if len(rows) < 2 or reference not in {None, *rows}:
        return {}
    best = _best(rows)
    reference_index = best if reference is None else reference
    reference_row = rows[reference_index]
    other_rows = [index for index in rows if index != reference_index]
    estimates = [unpaired(rows[index], reference_row) for index in other_rows]
    corrected, levels = _holm([_p_value(estimate) for estimate in estimates])
    result: dict[int, Versus] = {}
    if reference is None:
        result[reference_index] = Versus(0.0, None, None, "best", reference_row.method)
    for index, estimate, p, level in zip(other_rows, estimates, corrected, levels, strict=True):
        # By the level at which Holm tested this row. So a row is `above` or `below` if and only if its whole
        # interval lies beyond the margin.
        interval = estimate.interval(1 - level)
        word = _word(estimate.value, p, interval)
        # As with verdicts: equal measurements are equal losses, even of too few documents for an interval.
        if _are_copies(rows[index].ratios, reference_row.ratios):
            word = "tied"
        if word == "below" and reference is None:
            word = "unresolved"  # a row with one seed that is below the best row with several
        # The method that knows less is named: the interval is only as good as the worse of its two variances.
        method = min(rows[index].method, reference_row.method, key=METHODS.index)
        result[index] = Versus(
            difference=unit * estimate.value,
            ci95=_scaled(interval, unit),
            p=p,
            word=word,
            method=method,
            needs=_needs(estimate, method) if word == "unresolved" else None,
        )
    return result


def _best(rows: Mapping[int, RankedRow]) -> int:
    """Return the row with the lowest mean; if there are rows with several seeds, among these alone."""
    # One seed may be the lowest by luck. As the best of a column such rows made a false `above` in 28 to 48%
    # of simulated tables of equal rows (docs/log.md, 2026-11-26).
    with_seeds = [index for index, row in rows.items() if len(row.ratios) > 1]
    return min(with_seeds or rows, key=lambda index: rows[index].mean)


def ranked_rows(samples: Sequence[Samples | None]) -> dict[int, RankedRow]:
    """Return the rows that are ranked, by index, cut to the documents that all of them have."""
    by_seed = {index: list(row.values()) for index, row in enumerate(samples) if row}
    all_samples = on_shared_documents([sample for row in by_seed.values() for sample in row])
    if not all_samples:
        return {}
    return _ranked_rows(by_seed, ratios_of(all_samples, "bytes"))


def ranked_changes(pairs: Sequence[Pairs | None]) -> dict[int, RankedRow]:
    """Return the rows whose changes are ranked, by index, cut to the documents that all of them have."""
    by_seed = {index: list(row.values()) for index, row in enumerate(pairs) if row}
    all_pairs = [pair for row in by_seed.values() for pair in row]
    all_samples = on_shared_documents([sample for pair in all_pairs for sample in pair])
    if not all_samples:
        return {}
    ratios = ratios_of(all_samples, "bytes")
    # Each pair gave two ratios in turn: first the window, then its crop line.
    at_window = ratios[::2]
    at_crop_line = ratios[1::2]
    # A change is made within a seed, so that how good the seed is at T cancels. Rows are compared after that.
    changes = [change_of(ratio, base) for ratio, base in zip(at_window, at_crop_line, strict=True)]
    return _ranked_rows(by_seed, changes)


def unpaired(first: RankedRow, second: RankedRow) -> Estimate:
    """Return the mean of `first` minus that of `second`: seeds as Welch (1947), documents paired."""
    parts = [(first.variance, first.freedom), (second.variance, second.freedom)]
    documents = document_part(first.ratios, second.ratios)
    return welch(first.mean - second.mean, parts, documents)


def _ranked_rows(by_seed: Mapping[int, Sized], all_ratios: Sequence[Ratio]) -> dict[int, RankedRow]:
    """Return ranked rows. `all_ratios` has the seeds of the first row of `by_seed`, then of the next one."""
    ratios: dict[int, list[Ratio]] = {}
    start = 0
    for index, row in by_seed.items():
        stop = start + len(row)
        ratios[index] = list(all_ratios[start:stop])
        start = stop
    moderated = _moderated(ratios)
    predicted = _predicted(ratios)
    ranked = {}
    for index, row in ratios.items():
        # A row of several seeds shares its variance where the simulation allows it, a row of one seed borrows
        # that of the others, and every other row stands by itself.
        if index in moderated:
            ranked[index] = _ranked(row, moderated[index], "moderated")
        elif index in predicted:
            ranked[index] = _ranked(row, predicted[index], "predicted")
        else:
            ranked[index] = _ranked_alone(row)
    return ranked


def _moderated(ratios: Mapping[int, Sequence[Ratio]]) -> dict[int, SeedVariance]:
    """Return the shared variances over seeds, by index, of the rows that may share them."""
    with_seeds = [index for index, row in ratios.items() if len(row) >= LEAST_SEEDS]
    shared = shared_variances(tuple(_losses(ratios[index]) for index in with_seeds))
    return dict(zip(with_seeds, shared, strict=True)) if shared else {}


def _predicted(ratios: Mapping[int, Sequence[Ratio]]) -> dict[int, SeedVariance]:
    """Return the variances over seeds, by index, of the rows with one seed, by the rows with several."""
    with_one_seed = [index for index, row in ratios.items() if len(row) == 1]
    losses_of_others = tuple(_losses(row) for row in ratios.values() if len(row) > 1)
    means = tuple(ratios[index][0].value for index in with_one_seed)
    predicted = predicted_variances(losses_of_others, means)
    return dict(zip(with_one_seed, predicted, strict=True)) if predicted else {}


def _losses(row: Sequence[Ratio]) -> tuple[float, ...]:
    """Return the loss of each seed of a row."""
    # A tuple, because `shared_variances` is cached by its arguments.
    return tuple(ratio.value for ratio in row)


def _ranked(ratios: list[Ratio], over_seeds: SeedVariance, method: Method) -> RankedRow:
    """Return a row whose variance over seeds is known from other rows."""
    mean, _ = mean_and_spread([ratio.value for ratio in ratios])
    return RankedRow(ratios, mean, over_seeds.variance / len(ratios), over_seeds.freedom, method)


def _ranked_alone(ratios: list[Ratio]) -> RankedRow:
    """Return a row with the variance of its own seeds, 0 for one seed."""
    mean, spread = mean_and_spread([ratio.value for ratio in ratios])
    # No other row says how seeds differ, so that the interval is over documents alone.
    if spread is None:
        return RankedRow(ratios, mean, 0.0, 1, "documents")
    seeds = len(ratios)
    return RankedRow(ratios, mean, spread**2 / seeds, seeds - 1, "welch")


def _p_value(estimate: Estimate) -> float | None:
    """Return the two-sided p-value of the hypothesis that the truth is within the margin; None if unknown."""
    p = p_beyond(estimate, SAME_MARGIN)
    return None if p is None else min(1.0, 2 * p)


def _word(difference: float, p: float | None, interval: Interval | None) -> Word:
    """Return the word for a difference by its corrected p-value, or else by its interval."""
    # The test of a difference comes first, and equivalence second: both cannot hold, since the margin lies
    # between them.
    if p is not None and p < 1 - CONFIDENCE:
        return "above" if difference > 0 else "below"
    if interval is None:
        return "unresolved"
    low, high = interval
    is_within_margin = low >= -SAME_MARGIN and high <= SAME_MARGIN
    return "tied" if is_within_margin else "unresolved"


def _are_copies(ratios: Sequence[Ratio], others: Sequence[Ratio]) -> bool:
    """Tell whether two rows are equal seed by seed: all losses, and what they are without a document."""
    import numpy as np

    if len(ratios) != len(others):
        return False
    # A test-time extension that does nothing up to T is such a copy of its model there. Without the only
    # document there is no loss, which is nan on both sides.
    return all(
        ratio.value == other.value and np.array_equal(ratio.left_out, other.left_out, equal_nan=True)
        for ratio, other in zip(ratios, others, strict=True)
    )


def _needs(estimate: Estimate, method: Method) -> Needs:
    """Return which makes an interval too wide, seeds or documents.

    It is seeds if a row has a single one, since then its interval says nothing about other seeds.
    """
    half_widths = estimate.half_widths(1 - CONFIDENCE)
    if half_widths is None:
        return "documents"
    has_one_seed = method in ("documents", "predicted")
    if has_one_seed:
        return "seeds"
    seed_half, document_half = half_widths
    return "seeds" if seed_half > document_half else "documents"


def _unit(samples: Iterable[Sample], metric: str) -> float:
    """Return the factor from bits per byte to the metric, on the targets that all samples share."""
    # The first sample stands for all of them, since a column is ranked only if its rows scored the same
    # targets.
    sample = next(iter(samples), None)
    if metric == "bpb" or sample is None:
        return 1.0
    return math.log(2) * float(sample.bytes.sum()) / float(sample.targets.sum())


def _scaled(interval: Interval | None, unit: float) -> Interval | None:
    """Multiply both ends of an interval by `unit`."""
    if interval is None:
        return None
    low, high = interval
    return unit * low, unit * high


def _holm(p_values: Sequence[float | None]) -> tuple[list[float | None], list[float]]:
    """Correct p-values. Return them in their order, and for each the error that its interval may have.

    With m p-values the smallest is tested at the level 0.05 / m, the next at 0.05 / (m - 1), until one fails.
    All others are then tested at the level of that one.
    """
    ordered = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    levels = [1 - CONFIDENCE] * len(p_values)
    level = 0.0
    largest = 0.0  # corrected p so far: it never falls
    for rank, (p, index) in enumerate(ordered):
        tests_left = len(ordered) - rank
        # From the first test that fails on the level stays, as Holm's procedure stops there.
        if largest < 1 - CONFIDENCE:
            level = (1 - CONFIDENCE) / tests_left
        largest = max(largest, min(1.0, tests_left * p))
        corrected[index] = largest
        levels[index] = level
    return corrected, levels
