"""Clipped RoPE ("CoPE"): the lowest frequencies fade out.

Formula: RoPE, theta_k = base^(-2k/D); of the `pairs` lowest frequencies number i = 0.. (the highest first) is
multiplied by 0.5 (1 + cos(pi i / (pairs - 1))).
  pairs  how many are clipped; null: 20 of 64, the share of the released code for Llama, and 2 at least
  hard   true: they become zero instead, so that nothing of them turns
Another method is called CoPE as well, the contextual encoding `cope`. At test time it is `extend=clip`.
Source: the authors' code.
"""

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.shared.frequencies import clipped, pairs_to_clip
from posenc.encodings.shared.rotary import Layout, Rotary, check_pairs


class ClippedRoPE(Rotary):
    name = "clipped_rope"
    paper = "Li, Ren, Yuille, Wang 2026 (CoPE), arXiv 2602.05258"
    formula = "RoPE, the n lowest theta times 0.5 (1 + cos(pi i / (n-1))), i = 0..n-1"
    past_training = "the slowest pairs hardly turn; the others reach few angles that training never showed"
    learned = "0"

    def __init__(self, shape: Shape, *, base: float, layout: Layout, pairs: int | None, hard: bool) -> None:
        check_pairs(shape)
        super().__init__(shape, base=base, layout=layout, width=shape.head_dim)
        self.pairs = pairs_to_clip(pairs, shape.head_dim // 2)
        if pairs is None:
            self.derived["pairs"] = self.pairs
        self.hard = hard

    def learned_parameters(self) -> int:
        return 0

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return the frequencies, the lowest ones clipped: (D/2,) float64."""
        return clipped(super().frequencies(device), self.pairs, hard=self.hard)
