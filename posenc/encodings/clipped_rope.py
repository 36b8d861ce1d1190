"""Clipped RoPE ("CoPE"): the lowest frequencies fade out.

Formula: RoPE, with its lowest frequencies changed. Sort the `pairs` lowest of theta_k = base^(-2k/D) from
high to low. The i-th of them, i = 0.., is multiplied by 0.5 (1 + cos(pi i / (pairs - 1))): the highest stays
as it is, and the lowest becomes 0.
Settings:
  pairs  how many of a head's pairs are clipped; null: 20/64 of them (as released for Llama), at least 2
  hard   true: all of these frequencies become 0, so that their pairs do not turn
The authors call the method CoPE. Here `cope` is another encoding, the contextual one. To clip the frequencies
of a model that was trained with RoPE, use the test-time extension `extend=clip`.
Source: the authors' code.
"""

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.shared.frequencies import clipped, pairs_to_clip
from posenc.encodings.shared.rotary import Layout, Rotary


class ClippedRoPE(Rotary):
    name = "clipped_rope"
    paper = "Li, Ren, Yuille, Wang 2026 (CoPE), arXiv 2602.05258"
    formula = "RoPE; of its n = `pairs` lowest theta the i-th, i = 0.., times 0.5 (1 + cos(pi i / (n-1)))"
    past_training = "the slowest pairs hardly turn; the others reach few angles that training never showed"
    learned = "0"

    def __init__(self, shape: Shape, *, base: float, layout: Layout, pairs: int | None, hard: bool) -> None:
        super().__init__(shape, base=base, layout=layout, width=shape.head_dim)
        self.pairs = pairs_to_clip(pairs, shape.head_dim // 2)
        if pairs is None:
            self.derived["pairs"] = self.pairs  # a run records what null stood for
        self.hard = hard

    def learned_parameters(self) -> int:
        return 0

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return the frequencies, the lowest ones clipped: (D/2,) float64."""
        # Clipped each time and not once, because the device is known only here.
        return clipped(super().frequencies(device), self.pairs, hard=self.hard)
