"""Simulate changes against T, and hold the verdict words against the truth."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from posenc.results.statistics.documents import difference
from posenc.results.statistics.verdicts import (
    BETTER_WORD,
    COLLAPSED_MARGIN,
    COLLAPSED_WORD,
    SAME_MARGIN,
    SAME_WORD,
    WORSE_WORD,
    verdict,
)
from simulations.printing import holds, percent, print_table
from simulations.study import (
    STABLE,
    ChangingRow,
    changing_rows,
    normal_errors,
    simulate_changes,
    skewed_errors,
)

ROUNDING = 1e-9  # where the truth lies on a margin, rounding must not decide what is false
# Rows whose change at 8T is nearest to the margin of *collapsed*. Their seeds and documents scatter more.
HARMED = ("cope", "shaw", "alibi+rope", "fire", "pope")
NEAR_SAME = (-SAME_MARGIN, 0.0, 0.01, SAME_MARGIN, 0.03, 0.05)  # true changes, bits per byte
NEAR_COLLAPSED = (COLLAPSED_MARGIN, 0.6, 0.8)
WORDS = (BETTER_WORD, SAME_WORD, WORSE_WORD, COLLAPSED_WORD, "unclear")


@dataclass(frozen=True)
class Case:
    """Rows that all have the same true change, and how their seeds scatter around it."""

    name: str
    errors: Callable[[Generator, int], np.ndarray]
    rows: Sequence[ChangingRow]
    true_change: float  # bits per byte


@dataclass(frozen=True)
class Judged:
    """What one simulated cell says, held against the truth."""

    row: str
    word: str
    is_false: bool
    covered: bool
    is_false_of_model: bool  # of the mean of these very seeds, not of all seeds that there could be
    covered_of_model: bool


def is_false(word: str, true_change: float) -> bool:
    """Tell whether a word contradicts the true change. On a margin the words of both sides are false."""
    if word == BETTER_WORD:
        return true_change >= -SAME_MARGIN - ROUNDING
    if word == SAME_WORD:
        return abs(true_change) >= SAME_MARGIN - ROUNDING
    if word == WORSE_WORD:
        return true_change <= SAME_MARGIN + ROUNDING
    if word == COLLAPSED_WORD:
        return true_change <= COLLAPSED_MARGIN + ROUNDING
    return False


def judge(rng: Generator, case: Case, seeds: int) -> list[Judged]:
    """Return what posenc says of each row of a case."""
    rows = case.rows
    true_change = case.true_change
    judged = []
    simulated_rows = simulate_changes(rng, rows, [true_change] * len(rows), seeds, case.errors)
    for row, simulated in zip(rows, simulated_rows, strict=True):
        estimate = difference(list(simulated.pairs.values()), "bytes")
        word = verdict(estimate).word
        change_of_model = float(simulated.true_changes.mean())
        judged.append(
            Judged(
                row=row.name,
                word=word,
                is_false=is_false(word, true_change),
                covered=holds(estimate.interval(), true_change),
                is_false_of_model=is_false(word, change_of_model),
                covered_of_model=holds(estimate.interval(), change_of_model),
            )
        )
    return judged


def most_false_row(judged: Sequence[Judged]) -> str:
    """Return the row with the most false words, and how many of its words are false."""
    shares = {}
    for name in {cell.row for cell in judged}:
        shares[name] = float(np.mean([cell.is_false for cell in judged if cell.row == name]))
    worst = max(sorted(shares), key=lambda name: shares[name])
    return f"{shares[worst]:.1%}" + (f" ({worst})" if shares[worst] else "")


def check_verdicts(experiments: int) -> None:
    """Print how often each verdict is said, is false, and has an interval that covers."""
    rows = changing_rows()
    stable = [row for row in rows if row.name in STABLE]
    harmed = [row for row in rows if row.name in HARMED]
    on_margins = [Case("skewed", skewed_errors, stable, SAME_MARGIN)]
    on_margins.append(Case("skewed", skewed_errors, harmed, COLLAPSED_MARGIN))
    cases = [Case("normal", normal_errors, stable, change) for change in NEAR_SAME]
    cases += [Case("normal", normal_errors, harmed, change) for change in NEAR_COLLAPSED]
    lines = []
    for case, seeds in itertools.product(cases + on_margins, (1, 3, 5)):
        rng = np.random.default_rng(0)
        judged: list[Judged] = []
        for _ in range(experiments):
            judged += judge(rng, case, seeds)
        lines.append(
            [
                f"{case.true_change:+.2f}",
                case.name,
                seeds,
                percent([cell.covered for cell in judged]),
                percent([cell.is_false for cell in judged]),
                most_false_row(judged),
                percent([cell.covered_of_model for cell in judged]),
                percent([cell.is_false_of_model for cell in judged]),
                *(f"{np.mean([cell.word == word for cell in judged]):.0%}" for word in WORDS),
            ]
        )
    heads = ["true change, bits", "seeds are", "seeds", "covered", "false words", "worst row"]
    heads += ["covered, of these models", "false, of these models", *WORDS]
    size = f"{len(stable)} or {len(harmed)} rows"
    print_table(f"Verdicts, {experiments} experiments with {size} each", heads, lines)
