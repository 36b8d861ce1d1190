"""Simulate how far distributions move by document, and hold the interval of memory against the truth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.special import betaincinv, ndtr

from posenc.results.discovery import load_runs
from posenc.results.measurements import Measurement, measurements_of
from posenc.results.statistics.documents import ratio_interval
from simulations.printing import holds, percent, print_table

RECORDS = "docs/records/study-recall-memory"
# Total variation: mean and standard deviation over documents. The first three are about those of `fox`,
# `alibi` and `rope` at 8T, by the widths of their intervals. In the last, few documents move much.
VARIATIONS = ((0.006, 0.004), (0.05, 0.013), (0.34, 0.06), (0.05, 0.08))
LIKENESS = (0.0, 0.2, 0.5)  # intraclass correlation of the documents of a group


@dataclass(frozen=True)
class Layout:
    """The documents of a measurement."""

    name: str
    targets: np.ndarray  # (D,)
    groups: np.ndarray | None  # (D,)


def recorded_layout() -> Layout:
    """Return the documents of the records of memory."""
    (first, *_) = load_runs([RECORDS])
    measured: Sequence[Measurement] = measurements_of(first, "memory")
    sums = next(measurement.sums for measurement in measured if measurement.sums)
    groups = np.asarray(sums["group"])
    name = f"{len(groups)} documents in {len(set(groups.tolist()))} groups, as recorded"
    return Layout(name, np.asarray(sums["targets"]), groups)


def layouts(rng: Generator) -> list[Layout]:
    """Return the recorded documents, and fewer ones of log-normal length without groups."""
    fewer = []
    for count in (10, 29, 100):
        targets = np.maximum(rng.lognormal(4, 1.0, count).round(), 1)
        fewer.append(Layout(f"{count} documents, log-normal of sigma 1", targets, None))
    return [recorded_layout(), *fewer]


def variation_interval(
    rng: Generator, layout: Layout, variation: tuple[float, float], likeness: float
) -> Sequence[float] | None:
    """Return the interval that posenc would record of new documents, beta distributed."""
    mean, spread = variation
    size = mean * (1 - mean) / spread**2 - 1
    latent = rng.normal(size=len(layout.targets))
    if layout.groups is not None:
        of_group = rng.normal(size=int(layout.groups.max()) + 1)[layout.groups]
        latent = np.sqrt(likeness) * of_group + np.sqrt(1 - likeness) * latent
    by_document = betaincinv(mean * size, (1 - mean) * size, ndtr(latent))
    groups = None if layout.groups is None else layout.groups.tolist()
    return ratio_interval((by_document * layout.targets).tolist(), layout.targets.tolist(), groups)


def check_memory(experiments: int) -> None:
    """Print how often the interval of a model's memory covers."""
    experiments *= 10  # they are cheap
    lines = []
    for layout, variation in itertools.product(layouts(np.random.default_rng(0)), VARIATIONS):
        line: list[object] = [layout.name, f"{variation[0]:g}, {variation[1]:g}"]
        for likeness in LIKENESS:
            if layout.groups is None and likeness > 0:
                line.append("")
                continue
            rng = np.random.default_rng(0)
            intervals = [variation_interval(rng, layout, variation, likeness) for _ in range(experiments)]
            line.append(percent([holds(interval, variation[0]) for interval in intervals]))
        lines.append(line)
    heads = ["documents", "total variation: mean, sd over documents", "documents independent"]
    heads += [f"alike in groups, ICC {likeness:g}" for likeness in LIKENESS if likeness > 0]
    print_table(f"Memory of one model: 95% intervals cover ({experiments} experiments)", heads, lines)
