"""Which rows of a column differ: every pair, paired by seed and by document, Holm-corrected.

A pair is ranked only where its corrected interval lies beyond the margin of "same" (comparison.verdicts): a
difference that nobody should choose by is no rank, however sure it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from posenc.results.statistics import Estimate, Ratio, difference_of, on_shared_documents, p_beyond, ratio
from posenc.results.verdicts import CONFIDENCE, SAME

Word = Literal["lower", "higher", "tie", "unclear"]
Mark = Literal["lowest", "tie", "unclear"]
Sample = Mapping[int, Mapping[str, Any]]  # `per_document` of a row by seed


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


def compare_pairs(
    labels: Sequence[str], samples: Sequence[Sample | None], only: int | None = None, chosen: bool = False
) -> list[Pair]:
    """Every pair of a column, in order; with `only` those with that row. None in `samples`: not ranked.

    Holm (1979) over all pairs of the column that have an interval: the smallest p is held against
    0.05 / m, the next against 0.05 / (m - 1), until one fails; the rest keep that one's level. A tie is an
    interval at that level that lies within the margin. m counts all pairs also where only some are asked
    for, unless the row was `chosen` before anybody looked at the numbers.
    """
    ratios = [{seed: ratio(one, "bytes") for seed, one in (sample or {}).items()} for sample in samples]
    pairs, estimates = [], []
    have = [i for i, sample in enumerate(samples) if sample is not None]
    with_it = [(min(only, i), max(only, i)) for i in have if i != only] if only in have else []
    for a, b in combinations(have, 2) if only is None else with_it:
        ours, theirs = ratios[a], ratios[b]
        seeds = sorted(set(ours) & set(theirs))
        shared = [_shared(samples[a], samples[b], ours, theirs, seed) for seed in seeds]
        estimate = difference_of([one for one in shared if one]) if all(shared) and seeds else None
        value = None if estimate is None else estimate.value
        pairs.append(Pair(a, b, [labels[a], labels[b]], seeds, value))
        estimates.append(estimate)
    count = len(pairs) if chosen else len(have) * (len(have) - 1) // 2
    _judge(pairs, estimates, unseen=count - len(pairs))
    return pairs


def _shared(
    a: Sample | None, b: Sample | None, ours: Mapping[int, Ratio], theirs: Mapping[int, Ratio], seed: int
) -> tuple[Ratio, Ratio] | None:
    """The ratios of a seed over the documents that both rows have (two tokenizers may reach others)."""
    assert a is not None and b is not None
    shared = on_shared_documents(a[seed], b[seed])
    if shared is None:
        return None
    if shared[0] is a[seed]:
        return ours[seed], theirs[seed]
    return ratio(shared[0], "bytes"), ratio(shared[1], "bytes")


def surely_below(pairs: Sequence[Pair], row: int) -> list[int]:
    """The rows that are clearly lower than this one."""
    below = [pair.b for pair in pairs if pair.a == row and pair.word == "higher"]
    return below + [pair.a for pair in pairs if pair.b == row and pair.word == "lower"]


def marks(pairs: Sequence[Pair], lowest: int) -> dict[int, Mark]:
    """The mark of each row that is not clearly above the row `lowest`; rows that are above have none."""
    found: dict[int, Mark] = {lowest: "lowest"}
    for pair in pairs:
        if lowest in (pair.a, pair.b):
            other, above = (pair.b, "lower") if pair.a == lowest else (pair.a, "higher")
            if pair.word != above:
                found[other] = "tie" if pair.word == "tie" else "unclear"
    return found


def holm(p: Sequence[float], unseen: int = 0) -> list[float]:
    """Holm's corrected p, in the order given; `unseen` more were not computed and count as the largest."""
    corrected, so_far = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        so_far = max(so_far, min(1.0, (len(p) + unseen - rank) * p[i]))
        corrected[i] = so_far
    return corrected


def _judge(pairs: Sequence[Pair], estimates: Sequence[Estimate | None], unseen: int) -> None:
    """Corrected p, interval and word of each pair, in place."""
    have = [(pair, one) for pair, one in zip(pairs, estimates, strict=True) if one is not None]
    found = p_beyond([estimate for _, estimate in have], SAME)
    tested = [(p, *one) for p, one in zip(found, have, strict=True) if p is not None]
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
