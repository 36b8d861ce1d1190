"""Choose an extension's parameters on validation documents, never on those that are reported."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

from posenc.core.errors import UserError
from posenc.evaluation.evaluate import Cell, plan_cells
from posenc.evaluation.extensions import Extension, build_extension, default_knobs, resolve_extend
from posenc.evaluation.foreign import Subject
from posenc.evaluation.forward_cache import EvalContext
from posenc.evaluation.plans import EvalRequest
from posenc.results.schema import Record

TARGETS = 8000  # validation targets for each candidate and length
SPLIT = "validation"


def candidates(extension: Extension | None, model: Subject) -> list[Extension]:
    """Build what the `grid` gives for this model, but for knobs that the user gave; [] where it has none."""
    if extension is None:
        return []
    settings = extension.settings
    usual = resolve_extend({"name": extension.name, **default_knobs(extension.name)})
    grid = {knob: values for knob, values in extension.grid.items() if settings[knob] == usual[knob]}
    found: list[Extension | None] = []
    for values in itertools.product(*grid.values()) if grid else ():
        with contextlib.suppress(UserError):
            found.append(build_extension({**settings, **dict(zip(grid, values, strict=True))}, model))
    return [built for built in found if built is not None]


def tune(
    context: EvalContext,
    request: EvalRequest,
    grid: Sequence[Extension],
    evaluated: Callable[[Sequence[Cell]], list[Record]],
) -> tuple[Extension, str]:
    """Return the candidate of lowest fixed-target loss beyond T on validation documents, and it in words.

    One without a number somewhere is never chosen; where none has one, the first is returned as it is.
    """
    validation = dataclasses.replace(request, split=SPLIT, max_targets=min(TARGETS, request.max_targets))
    losses = []
    for extension in grid:
        on_validation = dataclasses.replace(context, extension=extension, split=SPLIT)
        cells = plan_cells(on_validation, validation, ["fixed-target"])
        beyond = [c for c in cells if c.context.extension is not None and c.window in request.extrapolating]
        nats = [record["nats"] for record in evaluated(beyond)]
        losses.append(math.inf if None in nats else sum(n for n in nats if n is not None))
    best = grid[losses.index(min(losses))]
    if not math.isfinite(min(losses)):
        return best, f"{best.name}: none of {len(grid)} candidates has a number, knobs as given"
    first = grid[0].settings
    tuned = sorted(key for key in best.grid if any(one.settings[key] != first[key] for one in grid))
    knobs = ", ".join(f"{key}={best.settings[key]}" for key in tuned)
    best.settings = {**best.settings, "tuned_on": SPLIT, "tuned": tuned}
    return best, f"{best.name} {knobs}"
