"""Read the rows of the reference study, and simulate new seeds and documents of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
    count = len(first.document)
    documents = np.arange(count)
    drawn = rng.integers(count, size=count)
    simulated = []
    for row, shift in zip(rows, shifts, strict=True):
        samples = list(row.values())
        sizes = samples[0].bytes[drawn]
        nats = np.mean([sample.nats for sample in samples], axis=0)[drawn]
        errors = shift + rng.normal(0, np.std(losses_of(row), ddof=1), seeds)
        simulated.append(
            {
                seed: Sample(documents, nats + error * sizes * math.log(2), targets=sizes, bytes=sizes)
                for seed, error in enumerate(errors)
            }
        )
    return simulated


# --- changes against T


@dataclass(frozen=True)
class ChangingRow:
    """A row of the study at T and at 8T: sums by document, mean over its seeds, and how its seeds differ."""

    name: str
    bytes: np.ndarray  # (D,) of each document
    nats_at_t: np.ndarray  # (D,)
    nats_far: np.ndarray  # (D,)
    change: float  # bits per byte
    spread_at_t: float  # standard deviation over seeds, bits per byte
    spread_of_change: float


@dataclass(frozen=True)
class SimulatedChanges:
    """New seeds of a row on new documents."""

    pairs: dict[int, tuple[Sample, Sample]]  # by seed: at 8T, at T
    true_changes: np.ndarray  # (seeds,), over all documents that there are, in bits per byte


def changing_rows(protocol: str = "fixed-target") -> list[ChangingRow]:
    """Return every row of the study as trained."""
    columns = study_columns(protocol)
    at_t = columns[1.0]
    far = columns[8.0]
    return [
        _changing_row(name, row_at_t, row_far)
        for name, row_at_t, row_far in zip(at_t.names, at_t.rows, far.rows, strict=True)
    ]


def _changing_row(name: str, at_t: Samples, far: Samples) -> ChangingRow:
    losses_at_t = np.array(losses_of(at_t))
    changes = np.array(losses_of(far)) - losses_at_t
    first = next(iter(at_t.values()))
    return ChangingRow(
        name=name,
        bytes=first.bytes,
        nats_at_t=np.mean([sample.nats for sample in at_t.values()], axis=0),
        nats_far=np.mean([sample.nats for sample in far.values()], axis=0),
        change=float(changes.mean()),
        spread_at_t=float(losses_at_t.std(ddof=1)),
        spread_of_change=float(changes.std(ddof=1)),
    )


def normal_errors(rng: Generator, seeds: int) -> np.ndarray:
    """Return errors of seeds with mean 0 and variance 1."""
    return rng.normal(size=seeds)


def skewed_errors(rng: Generator, seeds: int) -> np.ndarray:
    """Return errors of seeds with mean 0 and variance 1: most a little below 0, a few far above."""
    return rng.exponential(size=seeds) - 1


def simulate_changes(
    rng: Generator,
    rows: Sequence[ChangingRow],
    true_changes: Sequence[float],
    seeds: int,
    errors: Callable[[Generator, int], np.ndarray] = normal_errors,
) -> list[SimulatedChanges]:
    """Return new seeds of the rows on new documents. Each row has a new true change, in bits per byte."""
    count = len(rows[0].bytes)
    documents = np.arange(count)
    drawn = rng.integers(count, size=count)  # the same for all rows, which are measured on the same documents
    simulated = []
    for row, true_change in zip(rows, true_changes, strict=True):
        sizes = row.bytes[drawn]
        nats_a_bit = sizes * math.log(2)  # so much a document changes by one bit per byte
        errors_at_t = row.spread_at_t * rng.normal(size=seeds)
        changes = true_change + row.spread_of_change * errors(rng, seeds)
        pairs = {}
        for seed in range(seeds):
            at_t = row.nats_at_t[drawn] + errors_at_t[seed] * nats_a_bit
            shift = errors_at_t[seed] + changes[seed] - row.change
            far = row.nats_far[drawn] + shift * nats_a_bit
            pairs[seed] = (
                Sample(documents, far, targets=sizes, bytes=sizes),
                Sample(documents, at_t, targets=sizes, bytes=sizes),
            )
        simulated.append(SimulatedChanges(pairs, changes))
    return simulated
