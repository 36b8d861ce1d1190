"""Simulate the choice of documents, and hold the intervals over documents against the truth."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from posenc.results.statistics.documents import Sample, difference
from simulations.printing import holds, percent, print_table


def change_covers_zero(sizes: np.ndarray, effect: np.ndarray, groups: np.ndarray | None = None) -> bool:
    """Tell whether the interval of one model's change covers 0, the truth.

    `effect` is the change of each document, in bits per byte.
    """
    documents = np.arange(len(sizes))
    at_t = Sample(documents, np.zeros(len(sizes)), targets=sizes, bytes=sizes, group=groups)
    far = replace(at_t, nats=effect * sizes * math.log(2))
    return holds(difference([(far, at_t)], "bytes").interval(), 0.0)


def check_documents(experiments: int) -> None:
    """Print how often the interval of a change covers: of few documents, and of documents in groups."""
    experiments *= 10  # they are cheap
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
