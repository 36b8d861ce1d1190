"""What posenc's words and intervals are worth: power on the reference study, and right by simulation.

    python scripts/checks/intervals.py [EXPERIMENTS]
Prints Markdown tables (a few minutes on one core). Welch: against the best row, unpaired, each row with a
variance of its own. Ours: as posenc.results.statistics does it. Simulated rows
are the study's: their losses by document (documents drawn anew with replacement), seeds normal with their
standard deviation. `equal`: all rows as good as the best; `edge`: every second one worse by just the margin.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from collections.abc import Sequence
from unittest.mock import patch

import numpy as np

from posenc.results.cells import samples_of
from posenc.results.discovery import load_runs
from posenc.results.grouping import group_runs, one_ranking
from posenc.results.recall import Place, RecallCell, SeedRecall, cell_of, is_below
from posenc.results.statistics import ranking
from posenc.results.statistics.documents import Sample, difference, ratio_of
from posenc.results.statistics.intervals import CONFIDENCE
from posenc.results.statistics.ranking import compare_with, ranked_rows, unpaired
from posenc.results.statistics.shared_variance import shared_variances
from posenc.results.statistics.verdicts import SAME

STUDY, SEEDS = "docs/records/study", 3
LENGTHS = {1.0: "T", 8.0: "8T"}
Rows = list[dict[int, Sample]]
STABLE = (
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
SIX = ("nope", "learned", "sinusoidal", "rope", "alibi", "t5")


def columns(protocol: str) -> dict[float, tuple[list[str], Rows]]:
    """Return the samples of every row as trained, by multiple of T."""
    runs = load_runs([STUDY])
    groups = [group for group in group_runs(one_ranking(runs, protocol)) if group.extension is None]
    multiples = sorted({multiple for group in groups for member in group.members for multiple in member.at})
    found = {m: [samples_of(group.members, m) for group in groups] for m in multiples}
    return {m: ([group.encoding for group in groups], rows) for m, rows in found.items()}


def first(rows: Rows, seeds: int = SEEDS) -> Rows:
    return [{seed: one for seed, one in row.items() if seed < seeds} for row in rows]


def above_best(rows: Rows) -> list[int]:
    return [i for i, one in compare_with(rows, None, "bpb").items() if one.word == "above"]


def told_apart(rows: Rows) -> float:
    """Return how many pairs are told apart with each row as the baseline in turn."""
    words = [one.word for i in range(len(rows)) for one in compare_with(rows, i, "bpb").values()]
    return sum(word != "tied" for word in words) / 2


def table(title: str, head: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for line in lines:
        print(f"| {' | '.join(map(str, line))} |", flush=True)


def on_the_study() -> None:
    lines, unresolved, cells = [], 0, 0
    for protocol in ("fixed-target", "sliding", "nonoverlapping"):
        for multiple, (_, every) in columns(protocol).items():
            rows = first(every)
            means = [np.mean([ratio_of(one, "targets").value for one in row.values()]) for row in rows]
            above = above_best(rows)
            far = [i for i, mean in enumerate(means) if mean - min(means) > 0.3]
            cells += len(far)
            unresolved += sum(i not in above for i in far)
            if protocol == "fixed-target" and multiple in LENGTHS:
                with patch.object(ranking, "shared_variances", lambda rows: None):
                    welch, welch_pairs = len(above_best(rows)), told_apart(rows)
                lines.append(
                    [LENGTHS[multiple], f"{welch_pairs:g}", f"{told_apart(rows):g}", welch, len(above)]
                )
    head = ["", "pairs, Welch", "pairs, ours", "above, Welch", "above, ours"]
    table("3 seeds: pairs of rows told apart, rows above the best", head, lines)
    print(f"\nMore than 0.3 nats above the best, {cells} cells of 3 protocols: not told so {unresolved}")


def added_rows() -> None:
    """Words against the best of random subsets of the rows, and of all."""
    rng, changed, total = np.random.default_rng(0), 0, 0
    for multiple in LENGTHS:
        rows = first(columns("fixed-target")[multiple][1])
        every = compare_with(rows, None, "bpb")
        best = next(i for i, one in every.items() if one.word == "best")
        for size in (10, 15, 20, 25) * 10:
            chosen = [best, *rng.choice([i for i in every if i != best], size - 1, replace=False)]
            some = compare_with([rows[i] for i in chosen], None, "bpb")
            changed += sum(some[at].word != every[i].word for at, i in enumerate(chosen))
            total += size - 1
    print(f"\nWords of 10 to 25 rows that change when the others are added: {changed / total:.1%} of {total}")


def held_out() -> None:
    """How often the mean of two seeds lies where three others of the row say, on the study's real seeds."""
    from scipy.special import stdtrit

    hits: dict[str, list[tuple[float, bool]]] = {"t": [], "shared": []}
    for protocol in ("fixed-target", "sliding", "nonoverlapping"):
        for _, rows in columns(protocol).values():
            losses = [[ratio_of(one, "bytes").value for one in row.values()] for row in rows]
            for chosen in itertools.combinations(range(5), 3):
                some = tuple(tuple(y[i] for i in (chosen if len(y) == 5 else range(3))) for y in losses)
                shared = shared_variances(some)
                for at, y in enumerate(losses):
                    if len(y) < 5:
                        continue
                    off = abs(np.mean(some[at]) - np.mean([y[i] for i in range(5) if i not in chosen]))
                    own = float(np.var(some[at], ddof=1))
                    for name, (variance, freedom) in {
                        "t": (own, 2.0),
                        "shared": shared[at] if shared else (own, 2.0),
                    }.items():
                        half = -stdtrit(freedom, 0.025) * math.sqrt(variance * (1 / 3 + 1 / 2))
                        hits[name].append((math.sqrt(own / np.var(y, ddof=1)), bool(off <= half)))
    lines = []
    for name, found in hits.items():
        lucky = [hit for ratio, hit in found if ratio < 0.5]
        lines.append(
            [name, f"{np.mean([hit for _, hit in found]):.1%}", f"{np.mean(lucky):.1%} of {len(lucky)}"]
        )
    table(
        "Real seeds, 95% intervals: the mean of two seeds of five, from the other three",
        ["", "covered", "where the three's sd is below half of the five's"],
        lines,
    )


def simulated(rng: np.random.Generator, rows: Rows, at: Sequence[int], shift: np.ndarray, seeds: int) -> Rows:
    """Return new seeds of the study's rows `at` on new documents, each row moved by `shift` bits per byte."""
    count = len(rows[0][0]["document"])
    drawn = rng.integers(count, size=count)
    found = []
    for i, by in zip(at, shift, strict=True):
        of = list(rows[i].values())
        sizes = np.asarray(of[0]["bytes"], dtype=float)[drawn]
        nats = np.mean([one["nats"] for one in of], axis=0)[drawn]
        spread = np.std([ratio_of(one, "bytes").value for one in of], ddof=1)
        error = by + rng.normal(0, spread, seeds)
        numbers = list(range(count))
        found.append(
            {
                s: {"document": numbers, "nats": nats + e * sizes * math.log(2), "bytes": sizes}
                for s, e in enumerate(error)
            }
        )
    return found


def by_simulation(experiments: int) -> None:
    study = columns("fixed-target")
    lines = []
    for seeds, size, multiple in itertools.product((2, 3, 5), (6, 29), LENGTHS):
        names, rows = study[multiple]
        at = [i for i, name in enumerate(names) if size == 29 or name in SIX]
        losses = np.array([np.mean([ratio_of(one, "bytes").value for one in rows[i].values()]) for i in at])
        level = losses.min() - losses
        cases = {"study": 0 * level, "equal": level, "edge": level + np.where(np.arange(size) % 2, SAME, 0.0)}
        found = {case: one_case(experiments, rows, at, shift, seeds) for case, shift in cases.items()}
        false = " / ".join(f"{found[case]['false']:.1%}" for case in cases)
        lines.append([seeds, size, LENGTHS[multiple], f"{found['study']['above']:.1f}", false])
        lines[-1] += [f"{found['study'][what]:.1%}" for what in ("covered", "together", "shared")]
    head = ["seeds", "rows", "at", "above", "false: study / equal / edge"]
    head += ["95% intervals cover", "all corrected ones", "shared variance"]
    table(f"Simulated, {experiments} experiments each: rows above the best; any false word", head, lines)


def power(experiments: int) -> None:
    """How often two rows of the stable group are told apart at 8T, by their true difference and the seeds."""
    names, rows = columns("fixed-target")[8.0]
    rows = [rows[names.index(name)] for name in STABLE]
    losses = np.array([np.mean([ratio_of(one, "bytes").value for one in row.values()]) for row in rows])
    rng, lines = np.random.default_rng(0), []
    for nats in (0.0, 0.003, 0.01, 0.03, 0.1):
        shift = losses.min() - losses + np.where(np.arange(len(rows)) % 2, nats / math.log(2), 0.0)
        shares = []
        for seeds in (2, 3, 5, 10):
            told = []
            for _ in range(experiments):
                made = simulated(rng, rows, range(len(rows)), shift, seeds)
                versus = compare_with(made, 0, "bpb")
                told += [versus[i].word != "tied" for i in range(1, len(rows), 2)]
            shares.append(f"{np.mean(told):.0%}")
        lines.append([nats, *shares])
    table(
        "Stable rows at 8T, told apart from the first one",
        ["true difference, nats", "2 seeds", "3", "5", "10"],
        lines,
    )


def of_recall(experiments: int) -> None:
    """Coverage of recall's intervals, and how often two shares are told apart, 128 windows a seed."""
    rng, lines = np.random.default_rng(0), []

    def cell(share: float, spread: float, seeds: int) -> RecallCell:
        shares = np.clip(share + rng.normal(0, spread, seeds), 0, 1)
        found = [SeedRecall(rng.binomial(128, p) / 128, 0.0, 128) for p in shares]
        return cell_of(Place(8.0, 512, 448, 4), found)

    for spread, (high, low) in itertools.product(
        (0.0, 0.05), ((1.0, 0.95), (0.95, 0.85), (0.8, 0.6), (0.5, 0.2))
    ):
        line: list[object] = [f"{high:.0%}, {low:.0%}", f"{100 * spread:g}"]
        for seeds in (1, 3, 5):
            pairs = [(cell(high, spread, seeds), cell(low, spread, seeds)) for _ in range(experiments)]
            # the mean of a clipped normal is not quite its centre; that is far below a window's share
            covered = np.mean([inside(one.ci95, low) for _, one in pairs])
            told = np.mean([is_below(two, one, CONFIDENCE) for one, two in pairs])
            line.append(f"{covered:.0%}, {told:.0%}")
        lines.append(line)
    head = ["shares", "sd of seeds, points", "1 seed", "3 seeds", "5 seeds"]
    table("Recall, 128 windows: the lower one's 95% interval covers; the two are told apart", head, lines)


def one_case(
    experiments: int, rows: Rows, at: Sequence[int], shift: np.ndarray, seeds: int
) -> dict[str, float]:
    """Return means over experiments: rows above the best, any of them falsely, coverage."""
    rng = np.random.default_rng(0)
    truth = shift + [np.mean([ratio_of(one, "bytes").value for one in rows[i].values()]) for i in at]
    lowest, found = int(truth.argmin()), []
    for _ in range(experiments):
        made = simulated(rng, rows, at, shift, seeds)
        versus = compare_with(made, None, "bpb")
        above = [i for i, one in versus.items() if one.word == "above"]
        best = next(i for i, one in versus.items() if one.word == "best")
        ranked = ranked_rows(made)
        plain = {i: unpaired(row, ranked[lowest]).interval() for i, row in ranked.items() if i != lowest}
        corrected = {i: one.ci95 for i, one in versus.items() if i != best}
        one: dict[str, float] = {
            "above": len(above),
            "false": any(truth[i] - truth[best] <= SAME + 1e-9 for i in above),
            "covered": statistics.fmean(inside(plain[i], truth[i] - truth[lowest]) for i in plain),
            "together": all(inside(corrected[i], truth[i] - truth[best]) for i in corrected),
            "shared": any(one.method == "moderated" for one in versus.values()),
        }
        found.append(one)
    return {what: float(np.mean([one[what] for one in found])) for what in found[0]}


def inside(interval: Sequence[float] | None, truth: float) -> bool:
    return interval is not None and interval[0] <= truth <= interval[1]


def of_documents(experiments: int) -> None:
    """Coverage of one model's change: few documents, and documents in groups that are alike."""
    rng, lines = np.random.default_rng(0), []

    def covers(sizes: np.ndarray, effect: np.ndarray, groups: np.ndarray | None, truth: float = 0.0) -> bool:
        numbers = list(range(len(sizes)))
        crop = {"document": numbers, "bytes": sizes, "nats": np.zeros(len(sizes))}
        crop |= {} if groups is None else {"group": groups.tolist()}
        one = {**crop, "nats": effect * sizes * math.log(2)}
        return inside(difference([(one, crop)], "bytes").interval(), truth)

    for sigma, count in itertools.product((0.5, 1.0), (10, 15, 20, 29, 60)):
        hits = [
            covers(rng.lognormal(6, sigma, count), rng.normal(size=count), None) for _ in range(experiments)
        ]
        lines.append([f"{count} documents, log-normal of sigma {sigma}", f"{np.mean(hits):.1%}", ""])
    for groups in (25, 40, 80):
        by: dict[bool, list[bool]] = {True: [], False: []}
        for _ in range(experiments):
            group = np.sort(rng.choice(groups, 160, p=rng.dirichlet(np.full(groups, 3.0))))
            effect = math.sqrt(0.2) * rng.normal(size=groups)[group] + math.sqrt(0.8) * rng.normal(size=160)
            sizes = rng.lognormal(6, 0.5, 160)
            for known, found in by.items():
                found.append(covers(sizes, effect, group if known else None))
        lines.append(
            [
                f"160 documents in {groups} groups, ICC 0.2",
                f"{np.mean(by[False]):.1%}",
                f"{np.mean(by[True]):.1%}",
            ]
        )
    table(
        f"95% intervals over documents cover ({experiments} experiments)",
        ["", "by document", "by group"],
        lines,
    )


def main(experiments: int) -> None:
    on_the_study()
    added_rows()
    held_out()
    of_documents(10 * experiments)
    by_simulation(experiments)
    power(experiments)
    of_recall(10 * experiments)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
