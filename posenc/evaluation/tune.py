"""Choosing an extension's knobs on validation documents, never on the ones that are reported."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.core.errors import UserError
from posenc.evaluation.evaluate import Cell, plan_cells
from posenc.evaluation.extend import Extension, build_extension, default_knobs, resolve_extend
from posenc.evaluation.plans import Asked
from posenc.evaluation.subject import Subject
from posenc.model.decoder import Decoder
from posenc.results.schema import Record

TARGETS = 8000  # validation targets for each candidate and length
SPLIT = "validation"


@dataclass(frozen=True)
class Chosen:
    """The candidate with the lowest loss; `words` say what it is, for a person."""

    extension: Extension
    words: str


def candidates(extension: Extension | None, model: Decoder) -> list[Extension]:
    """Every combination of the values that the extension offers for its knobs; [] where it offers none.

    A knob that is not as in the extension's YAML was given by the user, and stays. Values that make no sense
    with this model, or with another knob, are left out.
    """
    if extension is None:
        return []
    grid = _open(extension)
    found: list[Extension] = []
    for values in itertools.product(*grid.values()) if grid else ():
        with contextlib.suppress(UserError):
            built = build_extension({**extension.settings, **dict(zip(grid, values, strict=True))}, model)
            found += [] if built is None else [built]
    return found


def _open(extension: Extension) -> dict[str, Sequence[Any]]:
    """The knobs to choose: those that are as in the extension's YAML."""
    usual = resolve_extend({"name": extension.name, **default_knobs(extension.name)})
    return {
        knob: values for knob, values in extension.grid.items() if extension.settings[knob] == usual[knob]
    }


def tune(
    subject: Subject,
    asked: Asked,
    grid: Sequence[Extension],
    evaluated: Callable[[Sequence[Cell]], list[Record]],
) -> Chosen:
    """The candidate with the lowest mean fixed-target loss beyond T, on validation documents.

    `evaluated(cells)` measures and stores. A candidate without a number somewhere (diverged, out of memory)
    is never chosen; where none has one, it is the first, and nothing was chosen. Else the chosen one's
    settings say `tuned_on`, so that its row does too.
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
    if not math.isfinite(min(losses)):
        return Chosen(best, f"{best.name}: none of {len(grid)} candidates has a number, knobs as given")
    usual = grid[0].settings
    tuned = sorted(key for key in best.grid if any(one.settings[key] != usual[key] for one in grid))
    knobs = ", ".join(f"{key}={best.settings[key]}" for key in tuned)
    best.settings = {**best.settings, "tuned_on": SPLIT, "tuned": tuned}
    lost = losses.count(math.inf)
    left = f" ({lost} of {len(grid)} candidates without a number)" if lost else ""
    return Chosen(best, f"{best.name} {knobs}{left}")
