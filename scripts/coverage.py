"""How often the intervals contain the truth, and how often equal encodings are ranked: by simulation.

    python scripts/coverage.py [sympy stdlib]
The documents are those that fixed-target scores at T = 64 up to 8T, drawn anew with replacement for every
experiment. In bits per byte: documents differ from the truth by 0.1 (standard deviation: normal, log-normal
of sigma 1, or 0.08 by size and 0.06 normal), tokens by 1, seeds by 0.01 or 0.03 as a whole and by 0.05 in
each document. The truth is the ratio over all documents of the corpus: where the effect goes with the size,
the mean over documents is another number.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np
from rich.console import Console
from rich.table import Table

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.data import prepare
from posenc.evaluation import fixed_target
from posenc.evaluation.plans import EvalRequest
from posenc.results.ranking import compare_pairs, holm
from posenc.results.statistics import Sample, difference, p_beyond

EXPERIMENTS = 1000
TRAIN_LENGTH = 64
DOCUMENT, TOKEN, SEED_BY_DOCUMENT = 0.1, 1.0, 0.05
Effects = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def sizes_of(corpus: str) -> np.ndarray:
    """Bytes of the scored targets of each document: (D,)."""
    (job,) = compose_jobs("train", parse([f"data={corpus}"])).jobs
    store = prepare(job.settings["data"], job.settings["tokenizer"])
    windows = [TRAIN_LENGTH * multiple // 2 for multiple in (1, 2, 4, 8, 16)]
    asked = EvalRequest(store, "test", windows, TRAIN_LENGTH, 0.25, max_targets=50_000, stride=TRAIN_LENGTH)
    plan = fixed_target.plan(asked)
    stops = store.splits["test"].starts[plan.documents] + plan.ends
    sizes = np.bincount(plan.documents, weights=store.bytes_between(stops - plan.block, stops))
    return sizes[sizes > 0]


def shapes(sizes: np.ndarray) -> dict[str, Effects]:
    """Effects of documents by their sizes, each of standard deviation 1 over documents."""
    skew = math.sqrt((math.e - 1) * math.e)
    center, scale = sizes.mean(), max(sizes.std(), 1e-9)
    return {
        "normal": lambda rng, c: rng.normal(size=len(c)),
        "skewed": lambda rng, c: (rng.lognormal(size=len(c)) - math.exp(0.5)) / skew,
        "by size": lambda rng, c: 0.8 * (c - center) / scale + 0.6 * rng.normal(size=len(c)),
    }


def scores(nats: np.ndarray, sizes: np.ndarray) -> Sample:
    """Make the sums of a record from bits per byte of each document."""
    documents = list(range(len(sizes)))
    return Sample({"document": documents, "nats": nats * sizes * math.log(2), "bytes": sizes})


def seeds_of(
    rng: np.random.Generator, effect: np.ndarray, sizes: np.ndarray, seeds: int, seed_noise: float
) -> list[Sample]:
    """What each seed scores in documents of this effect; a single seed is the model that is meant."""
    found = []
    for _ in range(seeds):
        bits = effect + rng.normal(0, TOKEN, len(sizes)) / np.sqrt(sizes)
        if seeds > 1:
            bits = bits + rng.normal(0, seed_noise) + rng.normal(0, SEED_BY_DOCUMENT, len(sizes))
        found.append(scores(bits, sizes))
    return found


def coverage(rng: np.random.Generator, all_sizes: np.ndarray, shape: str, seeds: int, noise: float) -> float:
    """The share of experiments whose 95% interval contains the truth."""
    effects, hits = shapes(all_sizes)[shape], 0
    by_size = shape == "by size"
    expected = 0.8 * (all_sizes - all_sizes.mean()) / max(all_sizes.std(), 1e-9) if by_size else 0 * all_sizes
    truth = DOCUMENT * float((expected * all_sizes).sum() / all_sizes.sum())
    for _ in range(EXPERIMENTS):
        sizes = rng.choice(all_sizes, len(all_sizes))
        crop = scores(np.zeros(len(sizes)), sizes)
        measured = seeds_of(rng, DOCUMENT * effects(rng, sizes), sizes, seeds, noise)
        low, high = difference([(one, crop) for one in measured], "bytes").interval() or (0.0, 0.0)
        hits += low <= truth <= high
    return hits / EXPERIMENTS


def wrongly_ranked(
    rng: np.random.Generator, all_sizes: np.ndarray, shape: str, seeds: int, rows: int
) -> tuple[float, float]:
    """The share of experiments in which any pair of equal rows is ranked: at no margin, and at posenc's."""
    effects, found = shapes(all_sizes)[shape], [0, 0]
    for _ in range(EXPERIMENTS):
        sizes = rng.choice(all_sizes, len(all_sizes))
        samples = [
            dict(enumerate(seeds_of(rng, DOCUMENT * effects(rng, sizes), sizes, seeds, 0.03)))
            for _ in range(rows)
        ]
        pairs = [
            difference([(samples[a][s], samples[b][s]) for s in range(seeds)], "bytes")
            for a, b in combinations(range(rows), 2)
        ]
        found[0] += min(holm([p or 0.0 for p in p_beyond(pairs, 0.0)])) < 0.05
        words = [pair.word for pair in compare_pairs([""] * rows, samples)]
        found[1] += "lower" in words or "higher" in words
    return found[0] / EXPERIMENTS, found[1] / EXPERIMENTS


def main(corpora: Sequence[str]) -> None:
    console = Console()
    for corpus in corpora:
        sizes = sizes_of(corpus)
        effective = sizes.sum() ** 2 / (sizes**2).sum()
        console.print(
            f"{corpus}: {len(sizes)} documents of {sizes.min():.0f} to {sizes.max():.0f} bytes, "
            f"effective number {effective:.0f}; {EXPERIMENTS} experiments each"
        )
        table = Table("effects", "1 seed", "3 seeds, 0.01", "3, 0.03", "5, 0.01", "5, 0.03", title="covered")
        ranked = Table(
            "effects", "rows", "1 seed", "3 seeds", "5 seeds", title="ranked, at margin 0 and 0.02"
        )
        for shape in shapes(sizes):
            rng = np.random.default_rng(0)
            cases = [(1, 0.0), (3, 0.01), (3, 0.03), (5, 0.01), (5, 0.03)]
            table.add_row(shape, *(f"{coverage(rng, sizes, shape, *case):.1%}" for case in cases))
            for rows in (2, 6):
                wrong = [wrongly_ranked(rng, sizes, shape, seeds, rows) for seeds in (1, 3, 5)]
                ranked.add_row(shape, str(rows), *(f"{none:.1%} {margin:.1%}" for none, margin in wrong))
        console.print(table, ranked)


if __name__ == "__main__":
    main(sys.argv[1:] or ["sympy", "stdlib"])
