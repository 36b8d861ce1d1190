"""How often intervals contain the truth, by a short simulation; scripts/coverage.py is the long one."""

import math
from itertools import combinations

import numpy as np
import pytest

from posenc.results.ranking import holm
from posenc.results.statistics import difference, ratio_interval

EXPERIMENTS = 300


def test_few_unequal_documents_where_the_percentile_bootstrap_fails() -> None:
    rng, ours, naive = np.random.default_rng(7), 0, 0
    for _ in range(1000):
        counts = rng.lognormal(3, 1.5, 30)
        sums = counts * rng.normal(1.5, 0.4, 30)  # the ratio's true value is 1.5
        low, high = ratio_interval(list(sums), list(counts))
        ours += low <= 1.5 <= high
        drawn = rng.integers(0, 30, (200, 30))
        low, high = np.quantile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), [0.025, 0.975])
        naive += low <= 1.5 <= high
    assert naive / 1000 < 0.915 < ours / 1000 < 0.98


def seeds_of(rng, sizes, seeds: int, seed_noise: float):
    """`per_document` of each seed, that differ from 0 bits per byte by documents, seeds and tokens."""
    effect, found = rng.normal(0, 0.05, len(sizes)), []
    for _ in range(seeds):
        noise = rng.normal(0, seed_noise) + rng.normal(size=len(sizes)) / np.sqrt(sizes)
        nats = math.log(2) * sizes * (effect + noise)
        found.append({"document": np.arange(len(sizes)), "nats": nats, "bytes": sizes})
    return found


@pytest.mark.parametrize("seed_noise", [0.0, 0.01, 0.05])
def test_seeds_and_documents_together(seed_noise: float) -> None:
    rng, hits = np.random.default_rng(11), 0
    for _ in range(EXPERIMENTS):
        sizes = rng.integers(1, 20, 100) * 16.0
        crop = {"document": np.arange(100), "nats": 0 * sizes, "bytes": sizes}
        pairs = [(one, crop) for one in seeds_of(rng, sizes, 3, seed_noise)]
        low, high = difference(pairs, "bytes").interval()
        hits += low <= 0 <= high
    assert hits / EXPERIMENTS >= 0.92  # documents alone: a third at the largest noise


def test_six_equal_rows_are_hardly_ever_ranked() -> None:
    """Few seeds tell little of their own variance: one t of Satterthwaite's degrees ranks some in 20%."""
    rng, wrong = np.random.default_rng(12), 0
    for _ in range(100):
        sizes = rng.integers(1, 20, 60) * 16.0
        rows = [seeds_of(rng, sizes, 3, 0.03) for _ in range(6)]
        found = [difference(list(zip(a, b, strict=True)), "bytes") for a, b in combinations(rows, 2)]
        wrong += min(holm([estimate.p_beyond(0.0) for estimate in found])) < 0.05
    assert wrong <= 5
