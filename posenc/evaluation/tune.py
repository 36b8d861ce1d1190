"""Choosing an extension's knobs on validation documents, never on the ones that are reported."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.evaluation.evaluate import Cell, plan_cells
from posenc.evaluation.extend import Extension, build_extension
from posenc.evaluation.plans import Asked
from posenc.evaluation.subject import Subject
from posenc.results.records import Record

TARGETS = 8000  # validation targets for each candidate and length
SPLIT = "validation"


@dataclass(frozen=True)
class Chosen:
    """The candidate with the lowest loss; `words` say what it is, for a person."""

    extension: Extension
    words: str


def candidates(subject: Subject, settings: Mapping[str, Any]) -> list[Extension]:
    """Every combination of the values that the extension offers for its knobs; [] where it offers none."""
    if subject.extension is None or not subject.extension.grid:
        return []
    grid = subject.extension.grid
    built = [
        build_extension({**settings, **dict(zip(grid, values, strict=True))}, subject.model)
        for values in itertools.product(*grid.values())
    ]
    return [one for one in built if one is not None]


def tune(
    subject: Subject,
    asked: Asked,
    grid: Sequence[Extension],
    evaluated: Callable[[Sequence[Cell]], list[Record]],
) -> Chosen:
    """The candidate with the lowest mean fixed-target loss beyond T, on validation documents.

    `evaluated(cells)` measures and stores. A candidate that diverges somewhere is never chosen; where all do,
    it is the first. The chosen one's settings say `tuned_on`, so that its row does too.
    """
    validation = dataclasses.replace(asked, split=SPLIT, max_targets=min(TARGETS, asked.max_targets))
    losses = []
    for extension in grid:
        on_validation = dataclasses.replace(subject, extension=extension, split=SPLIT)
        cells = plan_cells(on_validation, validation, ["fixed-target"])
        beyond = [c for c in cells if c.subject.extension is not None and c.window in asked.extrapolating]
        nats = [record["nats"] for record in evaluated(beyond)]
        losses.append(math.inf if None in nats else sum(n for n in nats if n is not None))
    best = grid[losses.index(min(losses))]
    knobs = ", ".join(f"{key}={best.settings[key]}" for key in best.grid)
    best.settings = {**best.settings, "tuned_on": SPLIT}
    return Chosen(best, f"{best.name} {knobs}")
