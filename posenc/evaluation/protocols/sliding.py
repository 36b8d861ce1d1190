"""sliding: a window of W tokens moved on by S at a time; each step scores the S tokens that are new.

Every token of a span is scored once, with between W - S + 1 and W tokens of text before it (fewer only where
its document begins). S = 1 gives every token exactly W tokens, at W times the cost of one pass. The spans are
those of `nonoverlapping`: the difference between the two protocols is the early-token curse and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from posenc.core.errors import UserError
from posenc.evaluation.lengths import EvalLengths, resolve_length
from posenc.evaluation.protocols.base import Protocol, ProtocolSettings
from posenc.evaluation.protocols.fixed_target import block_size
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.spans import Spans, measure_steps, plan_spans
from posenc.evaluation.sums import LossSums
from posenc.settings.numbers import Share
from posenc.settings.tree import TokensOrMultiple

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext


@dataclass(frozen=True, kw_only=True)
class SteppedSpans(Spans):
    """Spans that are scored `stride` targets at a time, each step with a window of its own."""

    stride: int

    def tokens(self, window: int) -> int:
        steps = -(-self.block // self.stride)
        return len(self.documents) * steps * window

    def targets_in(self, window: int) -> int:
        return min(self.stride, self.block)


class Sliding(Protocol[SteppedSpans]):
    name = "sliding"
    title = "a sliding window"
    explain = "all tokens, each once, with at least W minus the stride tokens before it"
    note = "windows move by the stride, and every token is scored once"

    class Settings(ProtocolSettings):
        stride: TokensOrMultiple | None  # null: as many tokens as fixed-target scores in a window
        target_fraction: Share

    settings: Settings

    def stride(self, lengths: EvalLengths) -> int:
        """Return S in tokens."""
        if self.settings.stride is None:
            return block_size(self.settings.target_fraction, lengths.base_length)
        return resolve_length("eval.stride", self.settings.stride, lengths.base_length)

    def check(self, lengths: EvalLengths) -> None:
        """Raise UserError if a step would jump over tokens of the shortest window."""
        if self.stride(lengths) > lengths.shortest:
            problem = f"steps over tokens in the shortest window, {lengths.shortest} tokens"
            allowed = f"1 to {lengths.shortest} tokens"
            raise UserError("eval.stride", self.settings.stride, problem, allowed=allowed)

    def plan(self, request: EvalRequest) -> SteppedSpans:
        """Plan spans in steps of the stride, which changes neither the targets nor their hash."""
        # The stride is no part of the hash: `compare` reads it from the record.
        spans = plan_spans(request)
        return SteppedSpans(
            hash=spans.hash,
            documents=spans.documents,
            ends=spans.ends,
            block=spans.block,
            stride=self.stride(request.lengths),
        )

    def measure(self, context: EvalContext, plan: SteppedSpans, window: int) -> LossSums:
        """Sum the loss of every target of every span, in windows of W tokens."""
        return measure_steps(context, plan, plan.stride, window)
