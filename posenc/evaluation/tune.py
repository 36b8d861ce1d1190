"""Choose the knobs of a test-time extension on validation documents, never on those that are reported."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posenc.core.errors import UserError
from posenc.evaluation.evaluate import EvalCell, plan_cells
from posenc.evaluation.extensions import Extension, build_extension
from posenc.evaluation.passes import EvalContext
from posenc.evaluation.protocols.fixed_target import FixedTarget
from posenc.evaluation.request import EvalRequest
from posenc.results.records import Record

MOST_TARGETS = 8000  # for each candidate and length
SPLIT = "validation"


@dataclass(frozen=True)
class Candidate:
    """An extension with the values of its knobs that were tried, and its loss with them."""

    extension: Extension
    loss: float  # sum over the windows beyond T of nats per token; infinite if a window has no number


@dataclass(frozen=True)
class Tuned:
    """The chosen extension and a sentence that says how it was chosen."""

    extension: Extension
    summary: str


def tune(
    context: EvalContext,
    request: EvalRequest,
    protocol: FixedTarget,
    extension: Extension,
    *,
    tries: int,
    evaluate_cells: Callable[[Sequence[EvalCell]], list[Record]],
) -> Tuned:
    """Return the candidate with the lowest fixed-target loss beyond T on validation documents.

    At most `tries` candidates are measured. One without a number at some window is never chosen. The
    extension is returned as it is if that rules out all of them, or if there is no knob to choose.
    """
    validation = tuning_request(request)

    def loss_of(candidate: Extension) -> float:
        candidate_context = dataclasses.replace(context, extension=candidate, split=SPLIT)
        cells = plan_cells(candidate_context, validation, [protocol])
        # the crop line is a cell without the extension
        extended = [cell for cell in cells if cell.context.extension is not None]
        beyond = [cell for cell in extended if cell.window in request.lengths.beyond_training]
        losses = [record["nats"] for record in evaluate_cells(beyond)]
        # A sum and no mean: it has the same order, since every candidate is measured at the same windows.
        return sum(math.inf if loss is None else loss for loss in losses)

    candidates = try_candidates(context, request, extension, tries, loss_of)
    if not candidates:
        return Tuned(extension, "no knob to choose, measured as it is")
    best = min(candidates, key=lambda candidate: candidate.loss)
    if not math.isfinite(best.loss):
        return Tuned(extension, f"none of {len(candidates)} candidates has a number, knobs as given")
    return with_provenance(best, candidates)


def tuning_request(request: EvalRequest) -> EvalRequest:
    """Return the request for the targets that candidates are measured on."""
    # A knob that was chosen on the reported documents would make its extension look better than it is.
    return dataclasses.replace(request, split=SPLIT, max_targets=min(MOST_TARGETS, request.max_targets))


def try_candidates(
    context: EvalContext,
    request: EvalRequest,
    extension: Extension,
    tries: int,
    loss_of: Callable[[Extension], float],
) -> list[Candidate]:
    """Measure up to `tries` candidates that the extension's search proposes.

    The search is a generator: it yields knobs, and is sent their loss before it yields the next ones.
    """
    search = extension.search(request.lengths.longest)
    candidates: list[Candidate] = []
    loss: float | None = None
    while len(candidates) < tries:
        try:
            knobs = next(search) if loss is None else search.send(loss)
        except StopIteration:
            break
        # The search waits for a loss, also of knobs that are refused.
        loss = math.inf
        with contextlib.suppress(UserError):  # this model does not take these values: try the next ones
            # Built anew and not changed, because the constructor checks knobs and derives others from them.
            candidate = build_extension({**extension.settings, **knobs}, context.model)
            assert candidate is not None
            loss = loss_of(candidate)
            candidates.append(Candidate(candidate, loss))
    return candidates


def with_provenance(best: Candidate, candidates: Sequence[Candidate]) -> Tuned:
    """Return the best candidate. Its settings also name the tuned knobs and the split they were tuned on."""
    # A knob was tuned if it has several values among the candidates.
    first_settings = candidates[0].extension.settings
    tuned_knobs = []
    for knob, first_value in sorted(first_settings.items()):
        if any(candidate.extension.settings[knob] != first_value for candidate in candidates):
            tuned_knobs.append(knob)
    if not tuned_knobs:
        return Tuned(best.extension, "the only candidate that was tried")
    # The candidate was measured under its own settings, so it keeps them.
    extension = copy.copy(best.extension)
    extension.settings = {**best.extension.settings, "tuned_on": SPLIT, "tuned": tuned_knobs}
    values = ", ".join(f"{knob}={extension.settings[knob]}" for knob in tuned_knobs)
    return Tuned(extension, f"{values}, the best of {len(candidates)} on validation documents")
