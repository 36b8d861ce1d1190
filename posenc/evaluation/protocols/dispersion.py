"""dispersion: what attention does on the windows of fixed-target: does it spread, and does its sink hold?

Entropy, weight on the first token and variance of the output, in each layer, for the queries of the targets
(`posenc/evaluation/attention.py` has the formulas). The loss of the same targets comes with them.

Past T there is one more pass, which tells positions from the number of keys: the last T tokens alone, the
older half of them placed as far away as the window reaches. A query then has no more keys than in training,
but meets positions and distances that training never showed. Its loss minus that at T is what such positions
do by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from posenc.evaluation.blocks import Blocks
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols.base import Protocol, ProtocolSettings
from posenc.evaluation.protocols.fixed_target import FixedTarget
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.sums import LossSums
from posenc.results.records import Dispersion
from posenc.settings.numbers import Share

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext


@dataclass(frozen=True, kw_only=True)
class WatchedBlocks(Blocks):
    """The blocks of fixed-target, whose queries are watched."""

    context_length: int  # T of the model

    def tokens(self, window: int) -> int:
        """Count the windows, and past T the windows of T tokens with far positions."""
        placed_far = self.context_length if self.has_far_pass(window) else 0
        return super().tokens(window) + len(self.documents) * placed_far

    def has_far_pass(self, window: int) -> bool:
        """Tell whether the targets, which must fit into half of T, are scored at far positions, too."""
        return window > self.context_length and 2 * self.block <= self.context_length


class DispersionProtocol(Protocol[WatchedBlocks]):
    name = "dispersion"
    title = "what attention does"
    explain = "entropy of attention, weight on the first token, variance of the output: why a row fails"
    note = "attention of the fixed targets' queries, mean over layers; a mean over heads and queries"
    refuses_given = "needs the weights of the attention, which only runs that posenc trained show"
    refuses_transformers = "needs the weights of the attention, which only runs that posenc trained show"

    class Settings(ProtocolSettings):
        target_fraction: Share

    settings: Settings

    def check(self, lengths: EvalLengths) -> None:
        self._fixed_target().check(lengths)

    def plan(self, request: EvalRequest) -> WatchedBlocks:
        """Choose the blocks of fixed-target."""
        blocks = self._fixed_target().plan(request)
        return WatchedBlocks(
            hash=request.digest(self.name, blocks.hash),
            documents=blocks.documents,
            ends=blocks.ends,
            block=blocks.block,
            context_length=request.lengths.context_length,
        )

    def measure(self, context: EvalContext, plan: WatchedBlocks, window: int) -> LossSums:
        """Sum the loss of every target, and watch the attention of their queries.

        Raises NotApplicableError, OutOfMemoryError.
        """
        from posenc.evaluation.attention import far_losses, watch_windows  # here, since it imports torch

        stops = plan.stops(context)
        watched = watch_windows(context, stops, window, plan.block)
        far_nats = None
        if plan.has_far_pass(window):
            try:
                far_nats = float(far_losses(context, stops, window, plan.block).mean())
            except NotApplicableError:
                far_nats = None  # positions are drawn, or none is ever far
        attention = watched.attention
        dispersion = Dispersion(
            entropy=attention.entropy.tolist(),
            first=attention.first.tolist(),
            variance=attention.variance.tolist(),
            far_nats=far_nats,
        )
        sums = plan.sums(context, watched.nats.sum(axis=1))
        return replace(sums, extra={"dispersion": dispersion}) if is_finite(dispersion) else sums

    def _fixed_target(self) -> FixedTarget:
        return FixedTarget(FixedTarget.Settings(target_fraction=self.settings.target_fraction))


def is_finite(dispersion: Dispersion) -> bool:
    """Tell whether all numbers are finite: a record holds no others. Without them it says `diverged`."""
    values: list[Any] = [*dispersion["entropy"], *dispersion["first"], *dispersion["variance"]]
    values += [] if dispersion["far_nats"] is None else [dispersion["far_nats"]]
    return bool(np.isfinite(values).all())
