"""Which rows of a column differ: every pair, paired by seed and by document, Holm-corrected.

A pair is ranked only where its corrected interval lies beyond the margin of "same" (posenc.results.verdicts):
a difference that nobody should choose by is no rank, however sure it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from posenc.results.statistics import Estimate, difference
from posenc.results.verdicts import CONFIDENCE, SAME

Word = Literal["lower", "higher", "tie", "unclear"]
Mark = Literal["lowest", "tie", "unclear"]


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
    word: Word = "unclear"  # a is lower, higher, tied, or neither can be said


def compare_pairs(labels: Sequence[str], samples: Sequence[Mapping[int, Any] | None]) -> list[Pair]:
    """Every pair of a column, in order. `samples` has each row's `per_document` by seed; None: not ranked.

    Holm (1979) over all pairs of the column that have an interval: the smallest p is held against
    0.05 / m, the next against 0.05 / (m - 1), until one fails; the rest keep that one's level. A tie is an
    interval at that level that lies within the margin.
    """
    import numpy as np

    arrays = [  # once, as every row is in many pairs
        {
            seed: {key: np.asarray(values) for key, values in one.items()}
            for seed, one in (sample or {}).items()
        }
        for sample in samples
    ]
    pairs, estimates = [], []
    have = [i for i, sample in enumerate(samples) if sample is not None]
    for a, b in combinations(have, 2):
        ours, theirs = arrays[a], arrays[b]
        seeds = sorted(set(ours) & set(theirs))
        estimate = difference([(ours[s], theirs[s]) for s in seeds], "bytes") if seeds else None
        value = None if estimate is None else estimate.value
        pairs.append(Pair(a, b, [labels[a], labels[b]], seeds, value))
        estimates.append(estimate)
    _judge(pairs, estimates)
    return pairs


def marks(pairs: Sequence[Pair], lowest: int) -> dict[int, Mark]:
    """The mark of each row that is not clearly above the row `lowest`; rows that are above have none."""
    found: dict[int, Mark] = {lowest: "lowest"}
    for pair in pairs:
        if lowest in (pair.a, pair.b):
            other, above = (pair.b, "lower") if pair.a == lowest else (pair.a, "higher")
            if pair.word != above:
                found[other] = "tie" if pair.word == "tie" else "unclear"
    return found


def holm(p: Sequence[float]) -> list[float]:
    """Holm's corrected p, in the order given."""
    corrected, so_far = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        so_far = max(so_far, min(1.0, (len(p) - rank) * p[i]))
        corrected[i] = so_far
    return corrected


def _judge(pairs: Sequence[Pair], estimates: Sequence[Estimate | None]) -> None:
    """Corrected p, interval and word of each pair, in place."""
    tested: list[tuple[float, Pair, Estimate]] = []
    for pair, estimate in zip(pairs, estimates, strict=True):
        p = None if estimate is None else estimate.p_beyond(SAME)
        if estimate is not None and p is not None:
            tested.append((p, pair, estimate))
    tested.sort(key=lambda one: one[0])
    corrected = holm([p for p, _, _ in tested])
    level, failed = 0.0, False
    for rank, (p, pair, estimate) in enumerate(tested):
        if not failed:
            level = (1 - CONFIDENCE) / (len(tested) - rank)
            failed = p >= level
        low, high = estimate.interval(1 - level) or (0.0, 0.0)
        pair.p, pair.interval = corrected[rank], [low, high]
        if not failed:
            pair.word = "lower" if estimate.value < 0 else "higher"
        elif low >= -SAME and high <= SAME:
            pair.word = "tie"
