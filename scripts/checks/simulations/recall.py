"""Simulate what seeds recall, and hold its intervals against the truth."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.random import Generator

from posenc.results.beside.recall import Place, RecallCell, SeedRecall, cell_of, is_below
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


def check_recall(experiments: int) -> None:
    """Print what is simulated of recall. Experiments are cheap here, so ten times as many are made."""
    check_shares(10 * experiments)
    check_bimodal_seeds(10 * experiments)
