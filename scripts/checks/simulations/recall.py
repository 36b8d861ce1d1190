"""Simulate what seeds recall, and hold its intervals against the truth."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.random import Generator
from scipy.special import ndtr, ndtri

from posenc.results.beside.recall_cells import Place, RecallCell, SeedRecall, cell_of
from posenc.results.beside.recall_ranks import SAME_RECALL, is_below, with_ranks
from posenc.results.statistics.intervals import CONFIDENCE
from posenc.results.statistics.proportions import clopper_pearson
from simulations.printing import holds, percent, print_table

WINDOWS = 512  # of recall, a seed
CHANCE = 1 / 16  # of a value, for a seed that did not learn
FAR = Place(8.0, 512, 448, 4)
# What a seed that learned finds far away, as the beta distribution of (mean, standard deviation): nearly all,
# what `alibi` finds, and a share that hardly differs between seeds.
FOUND_FAR = ((0.98, 0.02), (0.6, 0.2), (0.33, 0.25), (0.15, 0.05))


def recall_cell(rng: Generator, shares: np.ndarray) -> RecallCell:
    """Return a simulated cell of seeds that each find a share, in windows that they draw."""
    found = rng.binomial(WINDOWS, shares) / WINDOWS
    return cell_of(FAR, [SeedRecall(share, 0.0, WINDOWS, has_fixed_draw=False) for share in found])


def shares_of_seeds(rng: Generator, mean: float, spread: float, seeds: int) -> np.ndarray:
    """Return what each seed finds: beta distributed, so between 0 and 1; all find the mean without spread."""
    if spread == 0 or seeds == 0:
        return np.full(seeds, mean)
    size = mean * (1 - mean) / spread**2 - 1
    return rng.beta(mean * size, (1 - mean) * size, seeds)


def check_shares(experiments: int) -> None:
    """Print how often the intervals of seeds that learned cover, and how often two rows are told apart."""
    rng = np.random.default_rng(0)
    lines = []
    pairs_of_shares = ((1.0, 0.95), (0.95, 0.85), (0.8, 0.6), (0.5, 0.2))
    for spread, (high, low) in itertools.product((0.0, 0.05), pairs_of_shares):
        line: list[object] = [f"{high:.0%}, {low:.0%}", f"{100 * spread:g}"]
        for seeds in (1, 3, 5):
            pairs = []
            for _ in range(experiments):
                upper = recall_cell(rng, shares_of_seeds(rng, high, spread if high < 1 else 0, seeds))
                pairs.append((upper, recall_cell(rng, shares_of_seeds(rng, low, spread, seeds))))
            covered = np.mean([holds(lower.ci95, low) for _, lower in pairs])
            told_apart = np.mean([is_below(lower, upper, CONFIDENCE) for upper, lower in pairs])
            line.append(f"{covered:.0%}, {told_apart:.0%}")
        lines.append(line)
    print_table(
        f"Recall, {WINDOWS} windows: the lower one's 95% interval covers; the two are told apart",
        ["shares", "sd of seeds, points", "1 seed", "3 seeds", "5 seeds"],
        lines,
    )


def check_bimodal_seeds(experiments: int) -> None:
    """Print how often both intervals cover where a seed learns or does not.

    Of the probability that a seed learns, the exact interval of k of n; of what those that learned find, that
    of their mean where at least two did. Last, what one interval for the mean over all seeds would do.
    """
    rng = np.random.default_rng(0)
    lines = []
    for p_learn, (mean, spread) in itertools.product((0.5, 0.65, 0.8), FOUND_FAR):
        line: list[object] = [f"{p_learn:.0%}", f"{mean:.0%}, {100 * spread:g}"]
        for seeds in (3, 5):
            learning = []
            finding = []
            together = []
            for _ in range(experiments):
                learned = int(rng.binomial(seeds, p_learn))
                learning.append(holds(clopper_pearson(learned, seeds), p_learn))
                shares = shares_of_seeds(rng, mean, spread, learned)
                if learned >= 2:
                    finding.append(holds(recall_cell(rng, shares).ci95, mean))
                of_all = recall_cell(rng, np.concatenate((shares, np.full(seeds - learned, CHANCE))))
                together.append(holds(of_all.ci95, p_learn * mean + (1 - p_learn) * CHANCE))
            line += [percent(learning), percent(finding), percent(together)]
        lines.append(line)
    heads = ["a seed learns", "finds far: mean, sd in points"]
    for seeds in (3, 5):
        heads += [f"{seeds} seeds: k of n", "those that learned", "mean of all"]
    print_table(f"Recall of bimodal seeds: 95% intervals cover ({experiments} experiments)", heads, lines)


# --- marks


ROUNDING = 1e-9  # where the truth lies on the margin, rounding must not decide what is false
# What the seeds of the best rows find: mean and standard deviation of a beta distribution.
BEST_SHARES = ((0.98, 0.02), (0.9, 0.05), (0.6, 0.2), (0.6, 0.35))


def check_marks(experiments: int) -> None:
    """Print how often the marks of recall are false, with all rows equal or every second one behind."""
    lines = []
    for (mean, spread), size, behind in itertools.product(BEST_SHARES, (2, 6), (0.0, 0.05, SAME_RECALL)):
        means = mean - behind * (np.arange(size) % 2)
        line: list[object] = [f"{mean:.0%}, {100 * spread:g}", size, f"{100 * behind:g}"]
        for seeds in (1, 3, 5):
            rng = np.random.default_rng(0)
            falsely_tied = []
            falsely_below = []
            tied = []
            for _ in range(experiments):
                shares = [shares_of_seeds(rng, share, spread, seeds) for share in means]
                # If every row has one seed, ranks are promised for these models alone.
                truth = np.array([share[0] for share in shares]) if seeds == 1 else means
                cells = {index: recall_cell(rng, share) for index, share in enumerate(shares)}
                ranked = with_ranks(cells)
                best = next(index for index, cell in ranked.items() if cell.rank == "best")
                lead = truth[best] - truth  # by how much each row is truly behind the one with the mark
                words = [ranked[index].rank for index in range(size)]
                tied += [word == "tied" for index, word in enumerate(words) if index != best]
                falsely_tied.append(
                    any(
                        word == "tied" and abs(row_lead) >= SAME_RECALL - ROUNDING
                        for word, row_lead in zip(words, lead, strict=True)
                    )
                )
                falsely_below.append(
                    any(
                        word == "below" and row_lead <= ROUNDING
                        for word, row_lead in zip(words, lead, strict=True)
                    )
                )
            line += [percent(falsely_tied), percent(falsely_below), f"{np.mean(tied):.0%}"]
        lines.append(line)
    heads = ["best rows find: mean, sd in points", "rows", "every second is behind, points"]
    for name in ("1 seed, of these models", "3 seeds", "5 seeds"):
        heads += [f"{name}: any falsely tied", "any falsely below", "rows tied"]
    print_table(f"Marks of recall, {experiments} experiments each", heads, lines)


# --- seeds that find little or much


# What ten seeds of `alibi` that learned find at 7T, after 1M tokens (docs/study-more.md).
ALIBI_SEEDS = np.array([0.39, 0.11, 0.08, 0.30, 0.70, 0.09, 0.07, 0.13, 0.93, 0.08])


def beta_shares(mean: float, spread: float) -> Callable[[Generator, int], np.ndarray]:
    """Return a function that draws the shares of so many seeds."""
    return lambda rng, seeds: shares_of_seeds(rng, mean, spread, seeds)


def check_u_shaped_seeds(experiments: int) -> None:
    """Print how often the interval covers where seeds find either little or much."""
    draws: tuple[tuple[str, float, Callable[[Generator, int], np.ndarray]], ...] = (
        ("beta, 90%, sd 15", 0.9, beta_shares(0.9, 0.15)),
        ("beta, 50%, sd 40", 0.5, beta_shares(0.5, 0.4)),
        ("beta, 29%, sd 30, as `alibi`", 0.29, beta_shares(0.29, 0.3)),
        (
            "one of the ten seeds of `alibi`",
            float(ALIBI_SEEDS.mean()),
            lambda rng, seeds: rng.choice(ALIBI_SEEDS, seeds),
        ),
        ("10%, every fourth seed 90%", 0.3, lambda rng, seeds: rng.choice([0.1, 0.1, 0.1, 0.9], seeds)),
    )
    lines = []
    for name, mean, draw in draws:
        line: list[object] = [name]
        for seeds in (3, 5, 10):
            rng = np.random.default_rng(0)
            intervals = [recall_cell(rng, draw(rng, seeds)).ci95 for _ in range(experiments)]
            line.append(percent([holds(interval, mean) for interval in intervals]))
            line.append(percent([interval[1] < mean for interval in intervals]))
        lines.append(line)
    heads = ["shares of seeds"]
    for seeds in (3, 5, 10):
        heads += [f"{seeds} seeds: covered", "interval too low"]
    print_table(f"Recall, U-shaped over seeds: 95% intervals, {experiments} experiments each", heads, lines)


# --- windows that all seeds share


SHARED_WINDOWS = 128  # of records from before posenc 0.2


def shared_cell(
    rng: Generator, mean: float, spreads: tuple[float, float], seeds: int
) -> tuple[RecallCell, Sequence[float]]:
    """Return a cell of seeds that answer the same windows, and the true shares: of all seeds, of the first.

    A seed finds a value if its skill, the ease of the window and luck add up to more than 0. All three are
    normal, and luck has the variance 1. `spreads` are the standard deviations of skill and of ease.
    """
    skill_spread, ease_spread = spreads
    level = ndtri(mean) * np.sqrt(1 + skill_spread**2 + ease_spread**2)
    skill = skill_spread * rng.normal(size=(seeds, 1))
    ease = ease_spread * rng.normal(size=SHARED_WINDOWS)
    hits = level + skill + ease + rng.normal(size=(seeds, SHARED_WINDOWS)) > 0
    shares = hits.mean(axis=1)
    of_first = float(ndtr((level + skill[0, 0]) / np.sqrt(1 + ease_spread**2)))
    cell = cell_of(FAR, [SeedRecall(float(s), 0.0, SHARED_WINDOWS, has_fixed_draw=True) for s in shares])
    return cell, (mean, of_first)


def check_shared_windows(experiments: int) -> None:
    """Print how often intervals of seeds that were asked in the same windows cover."""
    lines = []
    spreads = ((0.0, 0.0), (0.0, 1.5), (0.5, 0.0), (0.5, 1.5))
    for mean, spread in itertools.product((0.98, 0.8, 0.5, 0.2), spreads):
        line: list[object] = [f"{mean:.0%}", f"{spread[0]:g}", f"{spread[1]:g}"]
        for seeds in (1, 3, 5):
            rng = np.random.default_rng(0)
            covered = []
            for _ in range(experiments):
                cell, (of_all, of_first) = shared_cell(rng, mean, spread, seeds)
                # With one seed the interval is promised for this model alone.
                covered.append(holds(cell.ci95, of_first if seeds == 1 else of_all))
            line.append(percent(covered))
        lines.append(line)
    heads = ["mean share", "sd of skill", "sd of ease", "1 seed, of this model", "3 seeds", "5 seeds"]
    windows = f"{SHARED_WINDOWS} windows that all seeds share"
    print_table(f"Recall, {windows}: 95% intervals cover ({experiments} experiments)", heads, lines)


def check_recall(experiments: int) -> None:
    """Print what is simulated of recall. Experiments are cheap here, so ten times as many are made."""
    check_shares(10 * experiments)
    check_bimodal_seeds(10 * experiments)


def check_recall_marks(experiments: int) -> None:
    """Print what is simulated of the marks of recall. Experiments are cheap here, too."""
    check_marks(10 * experiments)


def check_hard_recall(experiments: int) -> None:
    """Print how the intervals of recall do where seeds are U-shaped, or windows shared."""
    check_u_shaped_seeds(10 * experiments)
    check_shared_windows(10 * experiments)
