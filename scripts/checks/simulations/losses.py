"""Simulate tables of losses, and hold their words and intervals against the truth."""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
from numpy.random import Generator

from posenc.results.statistics import ranking
from posenc.results.statistics.ranking import RankedRow, compare_with, ranked_rows, unpaired
from posenc.results.statistics.verdicts import SAME_MARGIN
from simulations.printing import holds, percent, print_table
from simulations.reference_study import APART
from simulations.study import LENGTHS, SIX, STABLE, Samples, mean_loss, simulate, study_columns


@dataclass(frozen=True)
class Experiment:
    """What one simulated table says, held against the truth."""

    above: int  # rows called above the best
    is_any_false: bool  # a row is called above although the truth is within the margin
    is_any_falsely_tied: bool  # a row is called tied although the truth is not inside the margin
    covered: float  # share of plain 95% intervals that cover the truth
    all_covered: bool  # so do all corrected intervals at once
    is_shared: bool  # some row shares its variance


def simulate_table(
    rng: Generator, rows: Sequence[Samples], shifts: np.ndarray, seeds: int, one_seed_every: int = 0
) -> Experiment:
    """Return what a table of new seeds and documents says; every n-th row may have a single seed."""
    truth = shifts + [mean_loss(row) for row in rows]
    lowest = int(truth.argmin())
    simulated = simulate(rng, rows, shifts, seeds)
    if one_seed_every:
        simulated = [
            {0: row[0]} if index % one_seed_every == 0 else row for index, row in enumerate(simulated)
        ]
    versus = compare_with(simulated, None, "bpb")
    above = [index for index, against in versus.items() if against.word == "above"]
    best = next(index for index, against in versus.items() if against.word == "best")
    tied = [index for index, against in versus.items() if against.word == "tied"]
    ranked = ranked_rows(simulated)
    plain = {
        index: unpaired(row, ranked[lowest]).interval() for index, row in ranked.items() if index != lowest
    }
    corrected = {index: against.ci95 for index, against in versus.items() if index != best}
    # In the case `edge` the truth lies on the margin itself, and rounding must not decide what is false.
    return Experiment(
        above=len(above),
        is_any_false=any(truth[index] - truth[best] <= SAME_MARGIN + 1e-9 for index in above),
        is_any_falsely_tied=any(abs(truth[index] - truth[best]) >= SAME_MARGIN - 1e-9 for index in tied),
        covered=statistics.fmean(holds(plain[i], truth[i] - truth[lowest]) for i in plain),
        all_covered=all(holds(corrected[i], truth[i] - truth[best]) for i in corrected),
        is_shared=any(against.method == "moderated" for against in versus.values()),
    )


def check_simulated_tables(experiments: int) -> None:
    """Print how often simulated tables say something false, and how often their intervals cover."""
    columns = study_columns("fixed-target")
    lines = []
    for seeds, size, multiple in itertools.product((2, 3, 5), (6, 29), LENGTHS):
        column = columns[multiple]
        rows = [row for name, row in zip(column.names, column.rows, strict=True) if size == 29 or name in SIX]
        losses = np.array([mean_loss(row) for row in rows])
        to_the_best = losses.min() - losses
        shifts_by_case = {
            "study": 0 * to_the_best,
            "equal": to_the_best,
            "edge": to_the_best + np.where(np.arange(size) % 2, SAME_MARGIN, 0.0),
        }
        results = {}
        for case, shifts in shifts_by_case.items():
            # Every case has the same draws, so that the cases differ by their shifts alone.
            rng = np.random.default_rng(0)
            results[case] = [simulate_table(rng, rows, shifts, seeds) for _ in range(experiments)]
        study = results["study"]
        false_words = [percent([result.is_any_false for result in of_case]) for of_case in results.values()]
        falsely_tied = [
            percent([result.is_any_falsely_tied for result in of_case]) for of_case in results.values()
        ]
        lines.append(
            [
                seeds,
                size,
                LENGTHS[multiple],
                f"{np.mean([result.above for result in study]):.1f}",
                " / ".join(false_words),
                " / ".join(falsely_tied),
                f"{np.mean([result.covered for result in study]):.1%}",
                percent([result.all_covered for result in study]),
                percent([result.is_shared for result in study]),
            ]
        )
    heads = ["seeds", "rows", "at", "above", "falsely above: study / equal / edge", "falsely tied"]
    heads += ["95% intervals cover", "all corrected ones", "shared variance"]
    print_table(
        f"Simulated, {experiments} experiments each: rows above the best; any false word", heads, lines
    )


def check_mixed_seeds(experiments: int) -> None:
    """Print false words of tables in which every third row has one seed, by these rules and by earlier ones.

    Before 0.2 a row with one seed counted as certain, and could be the best of a column.
    """
    columns = study_columns("fixed-target")
    lines = []
    for size, multiple in itertools.product((6, 29), LENGTHS):
        column = columns[multiple]
        rows = [row for name, row in zip(column.names, column.rows, strict=True) if size == 29 or name in SIX]
        losses = np.array([mean_loss(row) for row in rows])
        to_the_best = losses.min() - losses
        edge = to_the_best + np.where(np.arange(size) % 2, SAME_MARGIN, 0.0)
        for case, shifts in (("study", 0 * to_the_best), ("equal", to_the_best), ("edge", edge)):
            line: list[object] = [size, LENGTHS[multiple], case]
            for has_old_rules in (False, True):
                with contextlib.ExitStack() as stack:
                    if has_old_rules:
                        stack.enter_context(patch.object(ranking, "predicted_variances", lambda *rows: None))
                        stack.enter_context(patch.object(ranking, "_best", lowest_mean))
                    # Both rules judge the same tables.
                    rng = np.random.default_rng(0)
                    results = [simulate_table(rng, rows, shifts, 3, 3) for _ in range(experiments)]
                line.append(percent([result.is_any_false for result in results]))
                line.append(percent([result.is_any_falsely_tied for result in results]))
                line.append(f"{np.mean([result.above for result in results]):.1f}")
            lines.append(line)
    heads = ["rows", "at", "case", "falsely above", "falsely tied", "above"]
    heads += ["before: falsely above", "falsely tied", "above"]
    print_table(f"One and three seeds mixed, {experiments} experiments each: any false word", heads, lines)


def lowest_mean(rows: Mapping[int, RankedRow]) -> int:
    return min(rows, key=lambda index: rows[index].mean)


def check_power(experiments: int) -> None:
    """Print how often two stable rows are told apart at 8T, by their true difference and the seeds."""
    column = study_columns("fixed-target")[8.0]
    row_of = dict(zip(column.names, column.rows, strict=True))
    rows = [row_of[name] for name in STABLE]
    losses = np.array([mean_loss(row) for row in rows])
    is_odd = np.arange(len(rows)) % 2
    rng = np.random.default_rng(0)
    lines = []
    for nats in (0.0, 0.003, 0.01, 0.03, 0.1):
        shifts = losses.min() - losses + np.where(is_odd, nats / math.log(2), 0.0)
        shares = []
        for seeds in (2, 3, 5, 10):
            told_apart = []
            for _ in range(experiments):
                versus = compare_with(simulate(rng, rows, shifts, seeds), 0, "bpb")
                told_apart += [versus[index].word in APART for index in range(1, len(rows), 2)]
            shares.append(f"{np.mean(told_apart):.0%}")
        lines.append([nats, *shares])
    heads = ["true difference, nats", "2 seeds", "3", "5", "10"]
    print_table("Stable rows at 8T, told apart from the first one", heads, lines)


def check_losses(experiments: int) -> None:
    """Print what simulated tables of losses say."""
    check_simulated_tables(experiments)
    check_mixed_seeds(experiments)
    check_power(experiments)
