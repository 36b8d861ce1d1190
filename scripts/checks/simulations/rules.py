"""Hold the rules that the study sets before its runs against chance: *needed for learning*, *does both*."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from scipy.stats import binom, fisher_exact

from posenc.results.statistics.documents import difference
from posenc.results.statistics.verdicts import SAME_MARGIN, SAME_WORD, verdict
from simulations.printing import print_table
from simulations.recall import recall_cell, shares_of_seeds
from simulations.study import STABLE, ChangingRow, changing_rows, simulate_changes

ERROR = 0.05
RECIPES = 5  # held against the recipe of the study, in the table of controls
LEAST_FOUND = 0.5  # the whole interval of what the seeds find lies above it
ROWS = 39  # of the study; on prose four rows had the chance
FEW_ROWS = 4
# True changes at 8T, bits per byte, and what seeds find: mean and standard deviation. In the first case a row
# does both. In the others the change is on the margin, or beyond, or the share is on the margin, or below.
BOTH_CASES = (
    ("does both", 0.0, (0.98, 0.02)),
    ("change on the margin", SAME_MARGIN, (0.98, 0.02)),
    ("change beyond the margin", 0.03, (0.98, 0.02)),
    ("share on the margin", 0.0, (0.5, 0.2)),
    ("share on the margin, U-shaped", 0.0, (0.5, 0.4)),
    ("share below, as `alibi`", 0.0, (0.29, 0.3)),
    ("both on the margin", SAME_MARGIN, (0.5, 0.2)),
)


def p_needed(seeds: int) -> np.ndarray:
    """Return p of Fisher's test by how many seeds learned with a part and without it, (seeds + 1)^2."""
    counts = range(seeds + 1)
    p = [
        float(fisher_exact([(first, seeds - first), (second, seeds - second)]).pvalue)
        for first, second in itertools.product(counts, counts)
    ]
    return np.array(p).reshape(seeds + 1, seeds + 1)


def check_needed() -> None:
    """Print how often a part is called needed. It is computed from all outcomes, without simulation."""
    lines = []
    for seeds in (3, 5, 10):
        is_claimed = p_needed(seeds) < ERROR
        counts = np.arange(seeds + 1)
        for with_part, without_part in (
            (0.5, 0.5),
            (0.7, 0.7),
            (0.9, 0.9),
            (0.9, 0.5),
            (0.9, 0.1),
            (1.0, 0.0),
        ):
            first = binom.pmf(counts, seeds, with_part)
            claims_by_first = is_claimed @ binom.pmf(counts, seeds, without_part)
            of_one = float(first @ claims_by_first)
            of_any = float(first @ (1 - (1 - claims_by_first) ** RECIPES))
            lines.append([seeds, f"{with_part:.0%}, {without_part:.0%}", f"{of_one:.1%}", f"{of_any:.1%}"])
    heads = ["seeds each", "a seed learns with the part, without it", "called different", f"any of {RECIPES}"]
    print_table("Needed for learning, Fisher's exact test at 5%", heads, lines)


def simulate_same(
    rows: Sequence[ChangingRow], true_change: float, seeds: int, experiments: int
) -> np.ndarray:
    """Return whether each row's verdict is *same*, (experiments, rows)."""
    rng = np.random.default_rng(0)
    is_same = []
    for _ in range(experiments):
        simulated_rows = simulate_changes(rng, rows, [true_change] * len(rows), seeds)
        estimates = [difference(list(simulated.pairs.values()), "bytes") for simulated in simulated_rows]
        is_same.append([verdict(estimate) == SAME_WORD for estimate in estimates])
    return np.array(is_same)


def simulate_found(shares: tuple[float, float], seeds: int, experiments: int) -> np.ndarray:
    """Return whether each row's whole interval lies above what must be found, (experiments, rows)."""
    rng = np.random.default_rng(0)
    mean, spread = shares
    cells = [recall_cell(rng, shares_of_seeds(rng, mean, spread, seeds)) for _ in range(experiments * ROWS)]
    finds_enough = [cell.ci95[0] > LEAST_FOUND for cell in cells]
    return np.array(finds_enough).reshape(experiments, ROWS)


def check_both(experiments: int) -> None:
    """Print how often a row, or any of several rows, is shown to keep its loss and to find far values."""
    stable = [row for row in changing_rows() if row.name in STABLE]
    rows = [stable[index % len(stable)] for index in range(ROWS)]
    # What a row loses does not depend on what it finds, so several cases share the simulated losses.
    same = {
        (true_change, seeds): simulate_same(rows, true_change, seeds, experiments)
        for true_change, seeds in itertools.product({case[1] for case in BOTH_CASES}, (3, 5))
    }
    lines = []
    for (name, true_change, shares), seeds in itertools.product(BOTH_CASES, (3, 5)):
        passed = same[true_change, seeds] & simulate_found(shares, seeds, experiments)
        mean, spread = shares
        lines.append(
            [
                name,
                f"{true_change:+.2f}",
                f"{mean:.0%}, {100 * spread:g}",
                seeds,
                f"{passed.mean():.1%}",
                f"{passed[:, :FEW_ROWS].any(axis=1).mean():.1%}",
                f"{passed.any(axis=1).mean():.1%}",
            ]
        )
    heads = ["case", "true change, bits", "found: mean, sd in points", "seeds", "a row passes"]
    heads += [f"any of {FEW_ROWS} rows", f"any of {ROWS}"]
    print_table(f"*Same*, and found above 50% by the whole interval, {experiments} experiments", heads, lines)


def check_rules(experiments: int) -> None:
    """Print how often the rules claim something."""
    check_needed()
    check_both(experiments)
