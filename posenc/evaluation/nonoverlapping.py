"""nonoverlapping: text cut into windows that do not overlap, every token scored. For comparison with papers.

Longer windows are rewarded for having fewer tokens with little context (the early-token curse), so this
curve can even have the wrong sign. The same tokens are scored at every length: spans of the longest window,
which every window length cuts from the left. They are the spans of `sliding`, too.
"""

from __future__ import annotations

from posenc.evaluation.forward_cache import EvalContext, LossSums
from posenc.evaluation.plans import Blocks, plan_spans
from posenc.evaluation.sliding import measure_steps

NAME = "nonoverlapping"
plan = plan_spans


def measure(context: EvalContext, plan: Blocks, window: int) -> LossSums:
    """Sum the loss of every target of every span, in windows of `window` tokens (the last may be shorter)."""
    return measure_steps(context, plan, window, None)
