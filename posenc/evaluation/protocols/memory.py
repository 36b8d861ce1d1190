"""memory: how much does a prediction change with text farther back? For any model and any text.

The targets are those of fixed-target. A model predicts each of them twice: from a window of W tokens, and
from the last w of these tokens alone. The total variation of the two distributions is the probability that
moves to other tokens. It is 0 for a model that does not look farther back than w, and at most 1.

Memory is not use. A model that breaks in long windows changes its predictions, too. So a record also holds
how much probability the right token gains (the mean over targets, falls counted as 0), how much it loses, and
the loss in windows of W:
  memory large, loss lower    the model changed its mind and got better: it uses the far text
  memory large, loss higher   the model changed its mind and got worse: it sees the far text, which harms
  memory small                the model hardly sees the far text, whatever the loss says

A target that is not the last of its block has fewer tokens before it than the window, as in fixed-target.
Every window begins with the first position. So an absolute encoding sees the same tokens at other positions
in the two windows, and a part of its memory comes from that.

Source: the effective remembrance (EffRem) of Buitrago Ruiz and Gu 2025, arXiv 2507.02782, where the longer
window is the whole text. Gains and losses of the right token are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import MinLen

from posenc.evaluation.blocks import Blocks
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.lengths import EvalLengths, nearest_length
from posenc.evaluation.protocols.base import Protocol, ProtocolSettings
from posenc.evaluation.protocols.fixed_target import FixedTarget
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.sums import LossSums
from posenc.results.beside.memory import MemoryByWindow
from posenc.results.records import JsonInterval
from posenc.results.statistics.documents import ratio_interval
from posenc.settings.base import Settings as SettingsGroup
from posenc.settings.numbers import Share
from posenc.settings.tree import TokensOrMultiple

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext

SHORTER = "eval.memory.shorter"


class MemorySettings(SettingsGroup):
    """The group `eval.memory`."""

    shorter: Annotated[list[TokensOrMultiple], MinLen(1)]  # the windows w that each window is compared with


@dataclass(frozen=True, kw_only=True)
class ComparedBlocks(Blocks):
    """The blocks of fixed-target, and the windows w that each window W is compared with."""

    shorter: tuple[int, ...]  # tokens, ascending

    def shorter_than(self, window: int) -> list[int]:
        """Return the windows w that a window is compared with: those that are shorter."""
        return [length for length in self.shorter if length < window]

    def check_fits(self, window: int) -> None:
        if not self.shorter_than(window):
            raise NotApplicableError(f"n/a: no window of {SHORTER} is below {window}")

    def tokens(self, window: int) -> int:
        return super().tokens(window) + self.tokens_of_other_passes(window)

    def tokens_of_other_passes(self, window: int) -> int:
        """Count the shorter windows of every block."""
        return len(self.documents) * sum(self.shorter_than(window))


class Memory(Protocol[ComparedBlocks]):
    name = "memory"
    title = "text farther back"
    explain = "how far the next-token distribution moves when text farther back comes in, for any model"
    note = "memory is not use: it also rises where a model breaks, so read it beside the change of the loss"

    class Settings(ProtocolSettings):
        memory: MemorySettings
        target_fraction: Share

    settings: Settings

    def check(self, lengths: EvalLengths) -> None:
        """Raise UserError if a window does not hold the targets."""
        fixed_target = self._fixed_target()
        fixed_target.check(lengths)
        fixed_target.check_window(SHORTER, min(self.shorter_windows(lengths)), lengths)

    def shorter_windows(self, lengths: EvalLengths) -> tuple[int, ...]:
        """Return the windows w in tokens, ascending. T is always among them."""
        # T must be there: what comes in from T on is what extrapolation is about.
        return tuple(sorted({lengths.context_length, *self._windows_asked_for(lengths)}))

    def _windows_asked_for(self, lengths: EvalLengths) -> set[int]:
        """Return the windows w of the settings, in tokens."""
        shorter = self.settings.memory.shorter
        return {nearest_length(SHORTER, length, lengths.base_length) for length in shorter}

    def _windows_of_hash(self, lengths: EvalLengths) -> tuple[int, ...]:
        """Return the windows that the hash names: models of one base length share it, whatever their T."""
        asked_for = self._windows_asked_for(lengths)
        return tuple(sorted({lengths.base_length, *asked_for}))

    def plan(self, request: EvalRequest) -> ComparedBlocks:
        """Choose the blocks of fixed-target."""
        blocks = self._fixed_target().plan(request)
        shorter = self.shorter_windows(request.lengths)
        return ComparedBlocks(
            hash=request.digest(self.name, blocks.hash, self._windows_of_hash(request.lengths)),
            documents=blocks.documents,
            ends=blocks.ends,
            block=blocks.block,
            shorter=shorter,
        )

    def measure(self, context: EvalContext, plan: ComparedBlocks, window: int) -> LossSums:
        """Sum the loss of every target, and compare its distribution with those in shorter windows.

        Raises NotApplicableError if no window is shorter; OutOfMemoryError.
        """
        from posenc.evaluation.distributions import compare_windows  # here, since it imports torch

        plan.check_fits(window)
        shorter = plan.shorter_than(window)
        compared = compare_windows(context, plan.stops(context), window, shorter, plan.block)
        sums = plan.sums(context, compared.nats.sum(axis=1))
        if not np.isfinite(compared.variation).all():
            return sums  # a record holds finite numbers only: without these it says `diverged`
        by_window = MemoryByWindow(
            window=shorter,
            variation=compared.variation.mean(axis=(1, 2)).tolist(),
            variation_ci95=[interval_of(context, plan, variation) for variation in compared.variation],
            # Apart from the losses, since the two may be large and cancel each other in a mean.
            gained=np.maximum(compared.gain, 0).mean(axis=(1, 2)).tolist(),
            lost=np.maximum(-compared.gain, 0).mean(axis=(1, 2)).tolist(),
        )
        return replace(sums, extra={self.name: by_window})

    def _fixed_target(self) -> FixedTarget:
        return FixedTarget(FixedTarget.Settings(target_fraction=self.settings.target_fraction))


def interval_of(context: EvalContext, plan: Blocks, values: np.ndarray) -> JsonInterval | None:
    """Return the 95% interval, over documents, of the mean of values (N, block), one for each target."""
    # By the sums of losses, whose places the variations take, so that intervals are made over the same
    # groups.
    sums = plan.sums(context, values.sum(axis=1)).for_record(context.store.splits[context.split])
    return ratio_interval(sums.nats, sums.targets, sums.groups)
