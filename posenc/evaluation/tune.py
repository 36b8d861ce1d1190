"""Choose an extension's parameters on validation documents, never on those that are reported."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence

from posenc.core.errors import UserError
from posenc.evaluation.evaluate import Cell, plan_cells
from posenc.evaluation.extensions import Extension, build_extension
from posenc.evaluation.forward_cache import EvalContext
from posenc.evaluation.plans import EvalRequest
from posenc.results.schema import Record

TARGETS = 8000  # validation targets for each candidate and length
SPLIT = "validation"


def tune(
    context: EvalContext,
    request: EvalRequest,
    extension: Extension,
    tries: int,
    evaluated: Callable[[Sequence[Cell]], list[Record]],
) -> tuple[Extension, str]:
    """Return the candidate of lowest fixed-target loss beyond T on validation documents, and it in words.

    At most `tries` are measured. One without a number somewhere is never chosen; where none has one, the
    extension is returned as it is, and where it has no knob to choose too.
    """
    validation = dataclasses.replace(request, split=SPLIT, max_targets=min(TARGETS, request.max_targets))

    def loss_of(candidate: Extension) -> float:
        on_validation = dataclasses.replace(context, extension=candidate, split=SPLIT)
        cells = plan_cells(on_validation, validation, ["fixed-target"])
        beyond = [c for c in cells if c.context.extension is not None and c.window in request.extrapolating]
        nats = [record["nats"] for record in evaluated(beyond)]
        return math.inf if None in nats else sum(n for n in nats if n is not None)

    search, tried = extension.search(max(request.windows)), list[tuple[float, Extension]]()
    with contextlib.suppress(StopIteration):
        knobs = next(search)
        while len(tried) < tries:
            loss = math.inf
            with contextlib.suppress(UserError):  # a value that this model does not take
                candidate = build_extension({**extension.settings, **knobs}, context.model)
                assert candidate is not None
                loss = loss_of(candidate)
                tried.append((loss, candidate))
            knobs = search.send(loss)
    if not tried:
        return extension, "no knob to choose, measured as it is"
    loss, best = min(tried, key=lambda one: one[0])
    if not math.isfinite(loss):
        return extension, f"none of {len(tried)} candidates has a number, knobs as given"
    given = extension.settings
    tuned = sorted(k for k in given if any(one.settings[k] != tried[0][1].settings[k] for _, one in tried))
    best.settings = {**best.settings, "tuned_on": SPLIT, "tuned": tuned}
    knobs_found = ", ".join(f"{key}={best.settings[key]}" for key in tuned)
    return best, f"{knobs_found}, the best of {len(tried)} on validation documents"
