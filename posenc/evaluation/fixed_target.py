"""fixed-target: the same target tokens at every window length, so that only the text before them changes.

A target block is the last b tokens of a window. Every block has at least longest + 1 tokens up to its end in
its own document (the extra one is the first input), whatever the window that is being measured, and windows
of every length end where the block ends. At W = T no position lies beyond the training length: that record
is the crop line, the loss if the text is truncated to T tokens.
"""

from __future__ import annotations

import numpy as np

from posenc.core.errors import UserError
from posenc.evaluation.plans import Blocks, EvalRequest, blocks_by_document, measure_blocks, spread

NAME = "fixed-target"
measure = measure_blocks


def plan(request: EvalRequest) -> Blocks:
    """Choose blocks by the documents' lengths alone, `max_targets` targets in all, spread over documents."""
    block = block_of(request.target_fraction, request.base)
    check_block(min(request.windows), block)
    first = request.longest + 1  # the earliest end
    candidates = np.maximum(0, (request.lengths - first) // block + 1)  # blocks that fit, by document
    chosen = blocks_by_document(candidates, max(1, request.max_targets // block))
    documents = np.repeat(np.arange(len(candidates)), chosen)
    ends = np.concatenate(
        [first + block * spread(have, take) for have, take in zip(candidates, chosen, strict=True)]
    )
    return Blocks(documents, ends, block, request.digest(NAME, block, documents, ends))


def block_of(target_fraction: float, base_length: int) -> int:
    """Return b, the targets a block."""
    return max(1, round(target_fraction * base_length))


def check_block(shortest: int, block: int) -> None:
    """Raise UserError where the shortest window does not hold a block."""
    if shortest < block:
        problem = f"shorter than the target block of {block} tokens (eval.target_fraction * context_length)"
        raise UserError("eval.lengths", shortest, problem, allowed=f"lengths from {block} tokens")
