"""Simulate tables of changes, and hold their marks (`*`, `~`) and words against the truth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from posenc.results.statistics.ranking import compare_changes, ranked_changes, unpaired
from posenc.results.statistics.verdicts import SAME_MARGIN
from simulations.printing import holds, percent, print_table
from simulations.study import SIX, ChangingRow, changing_rows, simulate_changes

ROUNDING = 1e-9  # where the truth lies on the margin, rounding must not decide what is false
# Rows that lose less than this at 8T. In tables of these alone the best of a column is hard to tell.
NEARLY_FLAT = 0.1  # bits per byte


@dataclass(frozen=True)
class MarkedColumn:
    """What one simulated column of changes says, held against the truth."""

    above: int  # rows called above the best
    tied: int  # rows with the mark *tied*
    is_any_falsely_above: bool  # a row is called above although the truth is within the margin
    is_any_falsely_tied: bool  # a row is called tied although the truth is not inside the margin
    is_best_wrong: (
        bool  # the row with the mark of the best is truly behind another one by more than the margin
    )
    covered: float  # share of plain 95% intervals that cover the truth
    all_covered: bool  # so do all corrected intervals at once
    is_shared: bool  # some row shares its variance


@dataclass(frozen=True)
class Seeds:
    """How many seeds the rows of a table have, and which truth its words are held against."""

    name: str
    count: int
    one_seed_every: int = 0  # every n-th row has a single seed
    of_models: bool = False  # the truth is of these very seeds, not of all seeds that there could be


KINDS = (
    Seeds("2", 2),
    Seeds("3", 3),
    Seeds("5", 5),
    Seeds("3, every third row 1", 3, one_seed_every=3),
    Seeds("1", 1),
    Seeds("1, held against these models", 1, of_models=True),
)


def mark_column(rng: Generator, rows: Sequence[ChangingRow], truth: np.ndarray, seeds: Seeds) -> MarkedColumn:
    """Return what a column of new seeds and documents says."""
    simulated_rows = simulate_changes(rng, rows, truth.tolist(), seeds.count)
    pairs = [simulated.pairs for simulated in simulated_rows]
    if seeds.of_models:
        truth = np.array([simulated.true_changes.mean() for simulated in simulated_rows])
    one_seed_every = seeds.one_seed_every
    if one_seed_every:
        pairs = [{0: row[0]} if index % one_seed_every == 0 else row for index, row in enumerate(pairs)]
    versus = compare_changes(pairs, "bpb")
    above = [index for index, against in versus.items() if against.word == "above"]
    tied = [index for index, against in versus.items() if against.word == "tied"]
    best = next(index for index, against in versus.items() if against.word == "best")
    ranked = ranked_changes(pairs)
    lowest = int(truth.argmin())
    # A row with one seed is never the best one beside rows with several.
    most_seeds = max(len(row) for row in pairs)
    lowest_possible = min(truth[index] for index, row in enumerate(pairs) if len(row) == most_seeds)
    covered = [
        holds(unpaired(row, ranked[lowest]).interval(), truth[index] - truth[lowest])
        for index, row in ranked.items()
        if index != lowest
    ]
    corrected = [
        holds(against.ci95, truth[index] - truth[best]) for index, against in versus.items() if index != best
    ]
    return MarkedColumn(
        above=len(above),
        tied=len(tied),
        is_any_falsely_above=any(truth[index] - truth[best] <= SAME_MARGIN + ROUNDING for index in above),
        is_any_falsely_tied=any(abs(truth[index] - truth[best]) >= SAME_MARGIN - ROUNDING for index in tied),
        is_best_wrong=bool(truth[best] - lowest_possible > SAME_MARGIN + ROUNDING),
        covered=float(np.mean(covered)),
        all_covered=all(corrected),
        is_shared=any(against.method == "moderated" for against in versus.values()),
    )


def tables_of(rows: Sequence[ChangingRow]) -> dict[str, list[ChangingRow]]:
    """Return the rows of each simulated table, by its name."""
    return {
        "6": [row for row in rows if row.name in SIX],
        f"{sum(row.change < NEARLY_FLAT for row in rows)} nearly flat": [
            row for row in rows if row.change < NEARLY_FLAT
        ],
        f"{len(rows)}": list(rows),
    }


def true_changes_of(rows: Sequence[ChangingRow]) -> dict[str, np.ndarray]:
    """Return the true changes of the rows in each case."""
    changes = np.array([row.change for row in rows])
    equal = np.full(len(rows), changes.min())
    is_odd = np.arange(len(rows)) % 2 == 1
    return {"study": changes, "equal": equal, "edge": equal + np.where(is_odd, SAME_MARGIN, 0.0)}


def check_changes(experiments: int) -> None:
    """Print how often marks on changes are false, in tables of several seeds and of one and several."""
    tables = tables_of(changing_rows())
    lines = []
    for seeds, (size, rows) in itertools.product(KINDS, tables.items()):
        # One seed is not a matter of the table's size, and two seeds are hardly ever used.
        if seeds.count < 3 and "flat" not in size:
            continue
        for case, truth in true_changes_of(rows).items():
            # Every case has the same draws, so that the cases differ by their true changes alone.
            rng = np.random.default_rng(0)
            columns = [mark_column(rng, rows, truth, seeds) for _ in range(experiments)]
            lines.append(
                [
                    seeds.name,
                    size,
                    case,
                    percent([column.is_any_falsely_above for column in columns]),
                    percent([column.is_any_falsely_tied for column in columns]),
                    percent([column.is_best_wrong for column in columns]),
                    f"{np.mean([column.above for column in columns]):.1f}",
                    f"{np.mean([column.tied for column in columns]):.1f}",
                    f"{np.mean([column.covered for column in columns]):.1%}",
                    percent([column.all_covered for column in columns]),
                    percent([column.is_shared for column in columns]),
                ]
            )
    heads = [
        "seeds",
        "rows",
        "case",
        "any falsely above",
        "any falsely tied",
        "best mark wrong",
        "above",
        "tied",
    ]
    heads += ["95% intervals cover", "all corrected ones", "shared variance"]
    print_table(f"Marks on changes at 8T, {experiments} experiments each", heads, lines)
