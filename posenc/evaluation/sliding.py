"""sliding: a window of W tokens moved on by S at a time; each step scores the S tokens that are new.

Every token of a span is scored once, with between W - S + 1 and W tokens of text before it (fewer only where
its document begins). S = 1 gives every token exactly W tokens, at W times the cost of one pass. The spans are
those of `nonoverlapping`: the difference of the two is the early-token curse and nothing else.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from posenc.evaluation.forward_cache import EvalContext, LossSums, text_losses
from posenc.evaluation.plans import Blocks, EvalRequest, plan_spans

NAME = "sliding"


def plan(request: EvalRequest) -> Blocks:
    """Plan the spans of `plan_spans` in steps of `stride`, which changes neither targets nor hash."""
    return dataclasses.replace(plan_spans(request), stride=request.stride)


def measure(context: EvalContext, plan: Blocks, window: int) -> LossSums:
    """Sum the loss of every target of every span, in windows of W tokens."""
    assert plan.stride is not None
    return measure_steps(context, plan, plan.stride, window)


def measure_steps(context: EvalContext, plan: Blocks, stride: int, window: int | None) -> LossSums:
    """Sum the loss of every target, `stride` at a time, each step's window ending at the last one of it.

    The window has W tokens; None: as many as the step scores, so none before them.
    """
    before = np.arange(0, plan.block, stride)  # targets of a span before each step
    scored = np.minimum(stride, plan.block - before)  # (steps,)
    ends = plan.ends[:, None] - plan.block + before + scored  # (spans, steps), exclusive, in the document
    inputs_of = np.minimum(scored if window is None else window, ends - 1)  # or all there is
    stops, nats = (context.starts[plan.documents][:, None] + ends).ravel(), np.zeros(ends.size)
    # Steps of one length together, or a batch would hold no more windows than there are spans.
    kinds = np.stack(np.broadcast_arrays(inputs_of, scored), axis=-1).reshape(-1, 2)
    lengths, kind, counts = np.unique(kinds, axis=0, return_inverse=True, return_counts=True)
    alike = np.split(np.argsort(kind.ravel(), kind="stable"), np.cumsum(counts)[:-1])
    for (inputs, count), steps in zip(lengths.tolist(), alike, strict=True):
        nats[steps] = text_losses(context, stops[steps], inputs, count).sum(axis=1)
    return plan.sums(context, nats.reshape(ends.shape).sum(axis=1))
