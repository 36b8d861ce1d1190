"""dispersion: what does attention do on the windows of fixed-target? Does it spread, does its sink hold?

A record holds the loss of the targets and, for each layer, what attention does for their queries: its
entropy, its weight on the first token, and the variance of its output (formulas in
posenc/evaluation/attention.py).

In a window past T a query meets two new things: more keys, and farther positions. One more pass tells them
apart. It reads the last T tokens alone, with the first half of them placed at the beginning of the longer
window. So a query has as many keys as in training, but distances that training never showed. Its loss minus
the loss at T is what far positions do by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from posenc.evaluation.blocks import Blocks
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols.base import Protocol, ProtocolSettings
from posenc.evaluation.protocols.fixed_target import FixedTarget
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.sums import LossSums
from posenc.results.beside.dispersion import DispersionByLayer
from posenc.settings.numbers import Share

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext

REFUSAL = "needs the weights of the attention, which only runs that posenc trained show"


@dataclass(frozen=True, kw_only=True)
class WatchedBlocks(Blocks):
    """The blocks of fixed-target. The attention of their queries is measured."""

    context_length: int  # T of the model

    def tokens(self, window: int) -> int:
        return super().tokens(window) + self.tokens_of_other_passes(window)

    def tokens_of_other_passes(self, window: int) -> int:
        """Count the pass at far positions: T tokens for each block."""
        return len(self.documents) * self.context_length if self.has_far_pass(window) else 0

    def has_far_pass(self, window: int) -> bool:
        """Tell whether the targets are scored at far positions, too: past T, if they fit into half of T."""
        # The second half of the T tokens is the far one. A larger block would have targets in the near half.
        return window > self.context_length and 2 * self.block <= self.context_length


class Dispersion(Protocol[WatchedBlocks]):
    name = "dispersion"
    title = "what attention does"
    explain = "entropy of attention, weight on the first token, variance of the output: why a row fails"
    note = "attention of the fixed targets' queries, mean over layers; a mean over heads and queries"
    reason_against_given_models = REFUSAL
    reason_against_transformers = REFUSAL

    class Settings(ProtocolSettings):
        target_fraction: Share

    settings: Settings

    def check(self, lengths: EvalLengths) -> None:
        self._fixed_target().check(lengths)

    def plan(self, request: EvalRequest) -> WatchedBlocks:
        """Choose the blocks of fixed-target."""
        blocks = self._fixed_target().plan(request)
        return WatchedBlocks(
            # Other than fixed-target's hash, though the targets are the same: attention makes its passes its
            # own.
            hash=request.digest(self.name, blocks.hash),
            documents=blocks.documents,
            ends=blocks.ends,
            block=blocks.block,
            context_length=request.lengths.context_length,
        )

    def measure(self, context: EvalContext, plan: WatchedBlocks, window: int) -> LossSums:
        """Sum the loss of every target, and measure the attention of their queries.

        Raises NotApplicableError, OutOfMemoryError.
        """
        from posenc.evaluation.attention import watch_windows  # here, since it imports torch

        watched = watch_windows(context, plan.stops(context), window, plan.block)
        dispersion = DispersionByLayer(
            entropy=watched.attention.entropy.tolist(),
            first=watched.attention.first.tolist(),
            variance=watched.attention.variance.tolist(),
            far_nats=_far_nats(context, plan, window),
        )
        sums = plan.sums(context, watched.nats.sum(axis=1))
        if not is_finite(dispersion):
            return sums  # a record holds finite numbers only: without these it says `diverged`
        return replace(sums, extra={self.name: dispersion})

    def _fixed_target(self) -> FixedTarget:
        return FixedTarget(FixedTarget.Settings(target_fraction=self.settings.target_fraction))


def _far_nats(context: EvalContext, plan: WatchedBlocks, window: int) -> float | None:
    """Return the mean loss of the targets at far positions. Raises OutOfMemoryError.

    None if there is no such pass at this window, or if the encoding refuses such positions.
    """
    from posenc.evaluation.attention import far_losses

    if not plan.has_far_pass(window):
        return None
    try:
        # A plain mean over targets, since every block has the same number of them.
        return float(far_losses(context, plan.stops(context), window, plan.block).mean())
    except NotApplicableError:
        return None


def is_finite(dispersion: DispersionByLayer) -> bool:
    """Tell whether all numbers are finite."""
    values = [*dispersion["entropy"], *dispersion["first"], *dispersion["variance"]]
    if dispersion["far_nats"] is not None:
        values.append(dispersion["far_nats"])
    return bool(np.isfinite(values).all())
