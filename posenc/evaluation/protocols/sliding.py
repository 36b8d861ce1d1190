"""sliding: a window of W tokens moved on by S at a time; each step scores the S tokens that are new.

It scores spans: pieces of a document as long as the longest window (evaluation/spans.py). Every token of a
span is scored once, with between W - S + 1 and W tokens of text before it (fewer only near the beginning of
its document). S = 1 gives every token exactly W tokens, at W times the cost of one pass.

`nonoverlapping` scores the same spans, but the first tokens of each of its windows have hardly any text
before them. Shorter windows have more such tokens (the early-token curse). That is the only difference
between the two protocols.
"""

from __future__ import annotations

import math
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
        # Near the beginning of a document windows are shorter. The estimate takes them for whole ones.
        steps = math.ceil(self.block / self.stride)
        return len(self.documents) * steps * window

    def targets_in(self, window: int) -> int:
        return min(self.stride, self.block)


class Sliding(Protocol[SteppedSpans]):
    name = "sliding"
    title = "a sliding window"
    explain = "all tokens, each once, with more than W minus the stride tokens before it"
    note = "windows move by the stride, and every token is scored once"

    class Settings(ProtocolSettings):
        stride: TokensOrMultiple | None  # null: the number of targets that fixed-target has in a window
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
        """Plan spans that are scored in steps of the stride; it changes neither targets nor their hash."""
        # `compare` reads the stride from the record, so the hash need not hold it.
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
