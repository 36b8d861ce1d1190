"""fixed-target: the same target tokens at every window length, so that only the text before them changes.

A target block is b neighbouring tokens of a document. A window of any length W ends with the block, so its
last b tokens are the targets. A block ends at least one token more than the longest window into its document:
its last target stands one token behind the inputs of that window. So windows of every length fit, and they
all have the same blocks.

At W = T no position lies beyond the training length. That record is the crop line: the loss of somebody who
cuts the text to T tokens.

`posenc.evaluation.trigram` gives the loss of a byte trigram on the same targets, as a reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from posenc.evaluation.blocks import Blocks, choose_blocks, measure_blocks
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols.base import Protocol, ProtocolSettings
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.sums import LossSums
from posenc.settings.numbers import Share, check_whole
from posenc.settings.tree import LONGEST_CONTEXT

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext


class FixedTarget(Protocol[Blocks]):
    name = "fixed-target"
    title = "same targets, more text"
    explain = "the headline: the same last tokens at every length"

    class Settings(ProtocolSettings):
        target_fraction: Share  # targets of a window, as a share of base_length

    settings: Settings

    @classmethod
    def of(cls, target_fraction: float) -> FixedTarget:
        """Return the protocol with this setting, for those that measure something else on its targets."""
        return cls(cls.Settings(target_fraction=target_fraction))

    def block(self, lengths: EvalLengths) -> int:
        """Return b, the number of targets of a block."""
        return block_size(self.settings.target_fraction, lengths.base_length)

    def check(self, lengths: EvalLengths) -> None:
        """Raise UserError if the shortest window does not hold a block."""
        self.check_window("eval.lengths", lengths.shortest, lengths)

    def check_window(self, key: str, window: int, lengths: EvalLengths) -> None:
        """Raise UserError that names `key` if a window does not hold a block."""
        block = self.block(lengths)
        too_small = f"shorter than the target block of {block} tokens (eval.target_fraction * T)"
        check_whole(key, window, least=block, most=LONGEST_CONTEXT, too_small=too_small)

    def plan(self, request: EvalRequest) -> Blocks:
        """Choose blocks by the lengths of the documents, about `max_targets` targets in all."""
        block = self.block(request.lengths)
        earliest_end = request.lengths.longest + 1
        # blocks of a document end at earliest_end, earliest_end + block, ...
        blocks_in_document = np.maximum(0, (request.document_lengths - earliest_end) // block + 1)
        documents, ordinals = choose_blocks(blocks_in_document, max(1, request.max_targets // block))
        ends = earliest_end + block * ordinals
        # Which tokens are scored and not how they were chosen: another max_targets may choose the same.
        digest = request.digest(self.name, block, documents, ends)
        return Blocks(hash=digest, documents=documents, ends=ends, block=block)

    def measure(self, context: EvalContext, plan: Blocks, window: int) -> LossSums:
        return measure_blocks(context, plan, window)


def block_size(target_fraction: float, base_length: int) -> int:
    """Return how many targets a block of fixed-target has."""
    # A short T and a small fraction would give a block of no tokens.
    return max(1, round(target_fraction * base_length))
