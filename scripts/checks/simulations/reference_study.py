"""Check on the reference study itself how much posenc tells apart, and whether its words stay the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from posenc.results.statistics import ranking
from posenc.results.statistics.ranking import compare_with
from posenc.results.statistics.shared_variance import shared_variances
from simulations.printing import percent, print_table
from simulations.study import LENGTHS, Samples, first_seeds, losses_of, mean_loss, study_columns

PROTOCOLS = ("fixed-target", "sliding", "nonoverlapping")
CLEARLY_APART = 0.3  # nats
APART = ("above", "below")  # words for rows that are told apart


def rows_above_best(rows: Sequence[Samples]) -> list[int]:
    versus = compare_with(rows, None, "bpb")
    return [index for index, against_best in versus.items() if against_best.word == "above"]


def pairs_told_apart(rows: Sequence[Samples]) -> float:
    """Return how many pairs are told apart, with each row as the baseline in turn."""
    words = []
    for baseline in range(len(rows)):
        words += [against.word for against in compare_with(rows, baseline, "bpb").values()]
    return sum(word in APART for word in words) / 2


def check_power_on_study() -> None:
    """Print how many pairs are told apart, and how many rows are above the best, by Welch and by ours."""
    lines = []
    for multiple, length in LENGTHS.items():
        rows = first_seeds(study_columns("fixed-target")[multiple].rows)
        # Where no variance is shared, each row is compared by its own: Welch's way.
        with patch.object(ranking, "shared_variances", lambda rows: None):
            welch_pairs = pairs_told_apart(rows)
            welch_above = len(rows_above_best(rows))
        lines.append(
            [
                length,
                f"{welch_pairs:g}",
                f"{pairs_told_apart(rows):g}",
                welch_above,
                len(rows_above_best(rows)),
            ]
        )
    heads = ["", "pairs, Welch", "pairs, ours", "above, Welch", "above, ours"]
    print_table("3 seeds: pairs of rows told apart, rows above the best", heads, lines)


def check_clear_differences() -> None:
    """Print how many rows are clearly worse than the best and are not called above it."""
    cells = 0
    unresolved = 0
    for protocol in PROTOCOLS:
        for column in study_columns(protocol).values():
            rows = first_seeds(column.rows)
            means = [mean_loss(row, "targets") for row in rows]
            clearly_worse = [i for i, mean in enumerate(means) if mean - min(means) > CLEARLY_APART]
            above = rows_above_best(rows)
            cells += len(clearly_worse)
            unresolved += sum(index not in above for index in clearly_worse)
    print(
        f"\nMore than {CLEARLY_APART} nats above the best, {cells} cells of 3 protocols: "
        f"not told so {unresolved}"
    )


def check_added_rows() -> None:
    """Print how often a row's word depends on which other rows are in the table."""
    rng = np.random.default_rng(0)
    changed = 0
    total = 0
    for multiple in LENGTHS:
        rows = first_seeds(study_columns("fixed-target")[multiple].rows)
        with_all = compare_with(rows, None, "bpb")
        best = next(index for index, against in with_all.items() if against.word == "best")
        not_best = [index for index in with_all if index != best]
        for size in (10, 15, 20, 25) * 10:
            subset = [best, *rng.choice(not_best, size - 1, replace=False)]
            with_subset = compare_with([rows[index] for index in subset], None, "bpb")
            changed += sum(with_subset[at].word != with_all[index].word for at, index in enumerate(subset))
            total += size - 1
    print(f"\nWords of 10 to 25 rows that change when the others are added: {changed / total:.1%} of {total}")


@dataclass(frozen=True)
class HeldOut:
    """An interval for the mean of two seeds, made from three others of the same row."""

    luck: float  # standard deviation of the three over that of all five
    covers: bool


def check_held_out_seeds() -> None:
    """Print how often the mean of two seeds lies where three others of the row say."""
    by_t: list[HeldOut] = []
    by_shared: list[HeldOut] = []
    for protocol in PROTOCOLS:
        for column in study_columns(protocol).values():
            losses = [losses_of(row) for row in column.rows]
            for chosen in itertools.combinations(range(5), 3):
                for t, shared in _held_out_of_rows(losses, chosen):
                    by_t.append(t)
                    by_shared.append(shared)
    lines = []
    for name, results in (("t", by_t), ("shared", by_shared)):
        lucky = [result.covers for result in results if result.luck < 0.5]
        covered = [result.covers for result in results]
        lines.append([name, percent(covered), f"{percent(lucky)} of {len(lucky)}"])
    print_table(
        "Real seeds, 95% intervals: the mean of two seeds of five, from the other three",
        ["", "covered", "where the three's sd is below half of the five's"],
        lines,
    )


def _held_out_of_rows(
    losses: Sequence[Sequence[float]], chosen: tuple[int, ...]
) -> list[tuple[HeldOut, HeldOut]]:
    """Return both intervals of each row with five seeds: by its own variance, and by the shared one."""
    parts: list[tuple[float, ...]] = []
    for row in losses:
        # A row of three seeds has none to hold out, but its variance counts for the shared one.
        seeds = chosen if len(row) == 5 else range(3)
        parts.append(tuple(row[seed] for seed in seeds))
    shared = shared_variances(tuple(parts))
    results = []
    for index, row in enumerate(losses):
        if len(row) < 5:
            continue
        held_out = [row[seed] for seed in range(5) if seed not in chosen]
        off = float(abs(np.mean(parts[index]) - np.mean(held_out)))
        own_variance = float(np.var(parts[index], ddof=1))
        luck = math.sqrt(own_variance / np.var(row, ddof=1))
        variance, freedom = shared[index] if shared else (own_variance, 2.0)
        results.append(
            (
                HeldOut(luck, off <= _half_width(own_variance, 2.0)),
                HeldOut(luck, off <= _half_width(variance, freedom)),
            )
        )
    return results


def _half_width(variance: float, freedom: float) -> float:
    """Return half of the 95% interval for a mean of three minus a mean of two."""
    from scipy.special import stdtrit

    return float(-stdtrit(freedom, 0.025) * math.sqrt(variance * (1 / 3 + 1 / 2)))


def check_study(experiments: int) -> None:
    """Print every check on the study. Nothing is drawn, so the number of experiments does not count."""
    check_power_on_study()
    check_clear_differences()
    check_added_rows()
    check_held_out_seeds()
