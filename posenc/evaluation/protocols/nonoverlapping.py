"""nonoverlapping: text cut into windows that do not overlap, every token scored. For comparison with papers.

The first tokens of a window have little text before them, and a longer window has a smaller share of such
tokens (the early-token curse). So longer windows are rewarded, and the change with the length can even have
the wrong sign. The same tokens are scored at every length: spans as long as the longest window, which the
windows of every length cut from the left. `sliding` scores the same spans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from posenc.evaluation.protocols.base import Protocol
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.spans import Spans, measure_steps, plan_spans
from posenc.evaluation.sums import LossSums

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext


# Of 18 verdicts past T `sliding` agreed with `fixed-target` in all, this protocol in 12. The six others
# favoured the longer windows.
class NonOverlapping(Protocol[Spans]):
    name = "nonoverlapping"
    title = "windows that do not overlap"
    explain = "as in papers; rewards longer windows"
    why_loss_changes = "the same text is cut into longer windows"
    note = "rewards longer windows: use it only to compare with papers"

    def plan(self, request: EvalRequest) -> Spans:
        return plan_spans(request)

    def measure(self, context: EvalContext, plan: Spans, window: int) -> LossSums:
        """Sum the loss of every token of every span, in windows of W tokens (the last may be shorter)."""
        return measure_steps(context, plan, window, None)
