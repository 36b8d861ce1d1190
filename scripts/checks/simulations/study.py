"""Read the rows of the reference study, and simulate new seeds and documents of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from posenc.results.cells import columns_of, samples_of
from posenc.results.discovery import load_runs
from posenc.results.grouping import group_runs
from posenc.results.rankings import one_ranking
from posenc.results.statistics.documents import Sample, ratio_of

STUDY = "docs/records/study"
SEEDS = 3
LENGTHS = {1.0: "T", 8.0: "8T"}
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
SIX = ("nope", "learned", "sinusoidal", "rope", "alibi", "t5")
Samples = dict[int, Sample]  # of a row, by seed


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
