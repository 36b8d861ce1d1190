"""Spans: pieces of documents, each as long as the longest window, of which every token is scored.

`nonoverlapping`, `sliding` and `positions` score the same spans, so that they differ by their windows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from posenc.evaluation.blocks import Blocks, choose_blocks
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.sums import LossSums

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext


@dataclass(frozen=True, kw_only=True)
class Spans(Blocks):
    """Blocks as long as the longest window. Shorter windows score a part each, so a block takes several."""

    def targets_in(self, window: int) -> int:
        return min(window, self.block)


def plan_spans(request: EvalRequest) -> Spans:
    """Choose N spans of the longest window's size, about `max_targets` targets in all.

    A document is cut into pieces of that size. The first piece has no text before it, so it is a span only
    where there is no other.
    """
    # One size for all windows, so that W = T and W = 8T score the same tokens.
    span = request.lengths.longest
    # the first token of a document has no text before it, so it is no target
    pieces = np.maximum(0, (request.document_lengths - 1) // span)  # (documents,)
    skips_first = pieces > 1
    candidates = np.where(skips_first, pieces - 1, pieces)
    documents, ordinals = choose_blocks(candidates, max(1, request.max_targets // span))
    starts = span * (ordinals + skips_first[documents])  # (N,) index of the first input in its document
    digest = request.digest("spans", span, documents, starts)
    # the targets are the `span` tokens after the first input, and an end is exclusive
    return Spans(hash=digest, documents=documents, ends=starts + 1 + span, block=span)


def measure_steps(context: EvalContext, plan: Spans, step: int, window: int | None) -> LossSums:
    """Sum the loss of every target. A step scores `step` targets, and its window ends at the last of them.

    The window has `window` inputs, or fewer near the beginning of the document. If `window` is None it has as
    many inputs as the step has targets, so that the model sees no text from before the step.
    """
    first_targets = np.arange(0, plan.block, step)  # (steps,) counted from the start of the span
    n_targets = np.minimum(step, plan.block - first_targets)  # (steps,), fewer in the last step
    span_starts = plan.ends[:, None] - plan.block  # (spans, 1)
    ends = span_starts + first_targets + n_targets  # (spans, steps), exclusive, in the document
    # No more than the document has before its last target.
    n_inputs = np.minimum(n_targets if window is None else window, ends - 1)  # (spans, steps)
    stops = context.document_starts[plan.documents][:, None] + ends  # (spans, steps), in the store
    # Spans and steps are one flat axis from here on, so that a batch can hold any of them.
    nats = np.zeros(ends.size)
    for group in _groups_of_one_shape(n_inputs, n_targets):
        losses = context.text_losses(stops.ravel()[group.steps], group.inputs, group.targets)
        nats[group.steps] = losses.sum(axis=1)
    return plan.sums(context, nats.reshape(ends.shape).sum(axis=1))


@dataclass(frozen=True)
class _StepGroup:
    """Steps of all spans with the same numbers of inputs and targets, which can be in one batch."""

    inputs: int
    targets: int
    steps: np.ndarray  # (n,) index into the flattened (spans, steps)


def _groups_of_one_shape(inputs: np.ndarray, targets: np.ndarray) -> list[_StepGroup]:
    """Group the steps by their numbers of inputs (spans, steps) and of targets (steps,).

    A batch holds windows of one shape. Grouped like this, it can hold any steps of any spans. If the steps
    were taken one by one, a batch could hold only the k-th step of each span: no more windows than spans.
    """
    shapes = np.stack(np.broadcast_arrays(inputs, targets), axis=-1).reshape(-1, 2)
    distinct, group_of_step = np.unique(shapes, axis=0, return_inverse=True)
    groups = []
    for number, (n_inputs, n_targets) in enumerate(distinct):
        # some versions of numpy return `group_of_step` with a second axis
        steps = np.flatnonzero(group_of_step.ravel() == number)
        groups.append(_StepGroup(int(n_inputs), int(n_targets), steps))
    return groups
