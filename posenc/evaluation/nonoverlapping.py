"""nonoverlapping: text cut into windows that do not overlap, every token scored. For comparison with papers.

Longer windows are rewarded for having fewer tokens with little context (the early-token curse), so this
curve can even have the wrong sign. The same tokens are scored at every length: spans of the longest window,
which every window length cuts from the left. They are the spans of `sliding`, too.
"""

from __future__ import annotations

import numpy as np

from posenc.evaluation.forward_cache import EvalContext, LossSums, text_losses
from posenc.evaluation.plans import Blocks, plan_spans

NAME = "nonoverlapping"
plan = plan_spans


def measure(context: EvalContext, plan: Blocks, window: int) -> LossSums:
    """Sum the loss of every target of every span, in windows of `window` tokens (the last may be shorter)."""
    begins = context.starts[plan.documents] + plan.ends - 1 - plan.block
    nats = np.zeros(len(begins))
    whole, rest = divmod(plan.block, window)
    for length, offsets in ((window, window * np.arange(whole)), (rest, np.array([window * whole]))):
        if length == 0 or len(offsets) == 0:
            continue
        stops = (begins[:, None] + offsets[None, :] + length + 1).ravel()  # (spans * windows,)
        losses = text_losses(context, stops, length, length)
        nats += losses.sum(axis=1).reshape(len(begins), len(offsets)).sum(axis=1)
    return plan.sums(context, nats)
