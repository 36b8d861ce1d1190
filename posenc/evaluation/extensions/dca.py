"""Dual chunk attention: positions begin anew in every chunk."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from posenc.evaluation.extensions.base import Length
from posenc.evaluation.extensions.redistanced import FarPairs, Redistancing


@dataclass(eq=False, kw_only=True)
class DualChunk(Redistancing):
    """Positions begin anew in chunks of s = `chunk` tokens (3/4 T), so that no distance is beyond T - 1.

    A key j has position j mod s. A query i has another position for each kind of key: i mod s for keys of its
    own chunk, min(i mod s + s, T-1) for keys of the chunk before, T-1 for earlier keys. Nothing changes up to
    min(T, 2s) tokens.
    Departure: the released code has chunks of 11/16 T and one distance more.
    """

    name = "dca"
    paper = "An et al. 2024 (Dual Chunk Attention), arXiv 2402.17463"
    formula = "i - j in a chunk of s, min(i mod s + s, T-1) - j mod s in the next, T-1 - j mod s beyond"
    grid: ClassVar = {"chunk": ("0.5x", None)}

    chunk: Length

    def __post_init__(self) -> None:
        super().__post_init__()
        self.s = self.tokens("chunk", self.chunk, max(1, self.reach * 3 // 4), self.reach)

    def far_pairs(self, window: int) -> list[FarPairs]:
        s = self.s
        last = self.reach - 1
        # Up to 2s tokens no pair is two chunks apart, and up to T no query is capped, so all distances are
        # true.
        if self.span(window) <= min(last + 1, 2 * s):
            return []
        # Each entry replaces scores in turn. Pairs two chunks apart are in both, and get those of the second.
        return [
            FarPairs(
                # At least and not exactly one: the second entry overwrites the others, so no upper limit is
                # needed.
                self._chunks_apart(1),
                query=lambda pos: (pos % s + s).clamp_max(last),
                key=lambda pos: pos % s,
            ),
            FarPairs(
                self._chunks_apart(2),
                query=lambda pos: torch.full_like(pos, last),
                key=lambda pos: pos % s,
            ),
        ]

    def _chunks_apart(self, chunks: int) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the function that tells which pairs are at least `chunks` chunks apart."""
        return lambda q_pos, k_pos: (q_pos // self.s)[:, None] - k_pos // self.s >= chunks
