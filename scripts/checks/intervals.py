"""Check what posenc's words and intervals are worth: power on the reference study, and truth by simulation.

    python scripts/checks/intervals.py [EXPERIMENTS]

Prints Markdown tables; 100 experiments take a few minutes on one core. *Welch* compares each row with the
best one by variances of its own; *ours* is what posenc.results.statistics does. A simulated row is one of the
study: its losses by document are drawn anew with replacement, and its seeds are normal with the study's
standard deviation. In the case `equal` all rows are as good as the best one; in `edge` every second row is
worse by just the margin.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
from numpy.random import Generator

from posenc.results.beside.recall import Place, RecallCell, SeedRecall, cell_of, is_below
from posenc.results.cells import columns_of, samples_of
from posenc.results.discovery import load_runs
from posenc.results.grouping import group_runs
from posenc.results.rankings import one_ranking
from posenc.results.statistics import ranking
from posenc.results.statistics.documents import Sample, difference, ratio_of
from posenc.results.statistics.intervals import CONFIDENCE
from posenc.results.statistics.proportions import clopper_pearson
from posenc.results.statistics.ranking import RankedRow, compare_with, ranked_rows, unpaired
from posenc.results.statistics.shared_variance import shared_variances
from posenc.results.statistics.verdicts import SAME_MARGIN

STUDY = "docs/records/study"
SEEDS = 3
PROTOCOLS = ("fixed-target", "sliding", "nonoverlapping")
LENGTHS = {1.0: "T", 8.0: "8T"}
CLEARLY_APART = 0.3  # nats
WINDOWS = 512  # of recall, a seed
STABLE = (  # rows whose losses hardly change at 8T
    "stick_breaking",
    "cable",
    "fox",
    "dape",
    "dynamic_bias",
    "kerple_log",
    "alibi",
    "transformer_xl",
    "sandwich",
)
CHANCE = 1 / 16  # of a value, for a seed that did not learn
SIX = ("nope", "learned", "sinusoidal", "rope", "alibi", "t5")
Samples = dict[int, Sample]  # of a row, by seed

APART = ("above", "below")  # words for rows that are told apart


@dataclass(frozen=True)
class StudyColumn:
    """The rows of the study at one window length."""

    names: list[str]
    rows: list[Samples]


def study_columns(protocol: str) -> dict[float, StudyColumn]:
    """Return the samples of every row as trained, by multiple of T."""
    ranking_of_study = one_ranking(load_runs([STUDY]), protocol)
    groups = [group for group in group_runs(ranking_of_study) if group.extend is None]
    members = [member for group in groups for member in group.members]
    names = [group.encoding for group in groups]
    return {
        column.multiple: StudyColumn(names, [samples_of(group.members, column.multiple) for group in groups])
        for column in columns_of(members)
    }


def first_seeds(rows: Sequence[Samples], seeds: int = SEEDS) -> list[Samples]:
    return [{seed: sample for seed, sample in row.items() if seed < seeds} for row in rows]


def losses_of(row: Samples, per: str = "bytes") -> list[float]:
    """Return the loss of each seed, in bits per byte or (targets) in nats per token."""
    return [ratio_of(sample, per).value for sample in row.values()]


def mean_loss(row: Samples, per: str = "bytes") -> float:
    return float(np.mean(losses_of(row, per)))


def rows_above_best(rows: Sequence[Samples]) -> list[int]:
    versus = compare_with(rows, None, "bpb")
    return [index for index, against_best in versus.items() if against_best.word == "above"]


def pairs_told_apart(rows: Sequence[Samples]) -> float:
    """Return how many pairs are told apart, with each row as the baseline in turn."""
    words = []
    for baseline in range(len(rows)):
        words += [against.word for against in compare_with(rows, baseline, "bpb").values()]
    return sum(word in APART for word in words) / 2


def holds(interval: Sequence[float] | None, truth: float) -> bool:
    """Tell whether an interval covers the truth."""
    return interval is not None and interval[0] <= truth <= interval[1]


def percent(hits: Sequence[bool]) -> str:
    return f"{np.mean(hits):.1%}"


def print_table(title: str, heads: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for line in lines:
        print(f"| {' | '.join(map(str, line))} |", flush=True)


# --- on the study itself


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


# --- by simulation


def simulate(rng: Generator, rows: Sequence[Samples], shifts: np.ndarray, seeds: int) -> list[Samples]:
    """Return new seeds of the rows on new documents, each row moved by its shift in bits per byte."""
    first = next(iter(rows[0].values()))
    count = len(first["document"])
    documents = list(range(count))
    drawn = rng.integers(count, size=count)
    simulated = []
    for row, shift in zip(rows, shifts, strict=True):
        samples = list(row.values())
        sizes = np.asarray(samples[0]["bytes"], dtype=float)[drawn]
        nats = np.mean([sample["nats"] for sample in samples], axis=0)[drawn]
        errors = shift + rng.normal(0, np.std(losses_of(row), ddof=1), seeds)
        simulated.append(
            {
                seed: {"document": documents, "nats": nats + error * sizes * math.log(2), "bytes": sizes}
                for seed, error in enumerate(errors)
            }
        )
    return simulated


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


# --- recall and documents


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


def check_recall(experiments: int) -> None:
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


def change_covers_zero(sizes: np.ndarray, effect: np.ndarray, groups: np.ndarray | None = None) -> bool:
    """Tell whether the interval of one model's change covers 0, the truth.

    `effect` is the change of each document, in bits per byte.
    """
    at_t: dict[str, object] = {
        "document": list(range(len(sizes))),
        "bytes": sizes,
        "nats": np.zeros(len(sizes)),
    }
    if groups is not None:
        at_t["group"] = groups.tolist()
    far = {**at_t, "nats": effect * sizes * math.log(2)}
    return holds(difference([(far, at_t)], "bytes").interval(), 0.0)


def check_documents(experiments: int) -> None:
    """Print how often the interval of a change covers: of few documents, and of documents in groups."""
    rng = np.random.default_rng(0)
    lines = []
    for sigma, count in itertools.product((0.5, 1.0), (10, 15, 20, 29, 60)):
        hits = [
            change_covers_zero(rng.lognormal(6, sigma, count), rng.normal(size=count))
            for _ in range(experiments)
        ]
        lines.append([f"{count} documents, log-normal of sigma {sigma}", percent(hits), ""])
    for count in (25, 40, 80):
        by_document = []
        by_group = []
        for _ in range(experiments):
            group = np.sort(rng.choice(count, 160, p=rng.dirichlet(np.full(count, 3.0))))
            of_group = math.sqrt(0.2) * rng.normal(size=count)[group]
            effect = of_group + math.sqrt(0.8) * rng.normal(size=160)
            sizes = rng.lognormal(6, 0.5, 160)
            by_document.append(change_covers_zero(sizes, effect))
            by_group.append(change_covers_zero(sizes, effect, group))
        lines.append([f"160 documents in {count} groups, ICC 0.2", percent(by_document), percent(by_group)])
    print_table(
        f"95% intervals over documents cover ({experiments} experiments)",
        ["", "by document", "by group"],
        lines,
    )


def main(experiments: int) -> None:
    check_power_on_study()
    check_clear_differences()
    check_added_rows()
    check_held_out_seeds()
    check_documents(10 * experiments)
    check_simulated_tables(experiments)
    check_mixed_seeds(experiments)
    check_power(experiments)
    check_recall(10 * experiments)
    check_bimodal_seeds(10 * experiments)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
