"""RoPE: rotary position embedding.

Formula: each pair of numbers of q_t and k_t is rotated by the angle t theta_k, so that the score depends on
i - j.
  theta_k  base^(-2k/D'), k = 0..D'/2 - 1
  D'       how many numbers of a head are rotated
Settings:
  layout    interleaved: pairs (2k, 2k+1) as in the paper
            half: pairs (k, k + D'/2), the same rotation in another order
  fraction  D' = fraction * D, an even number; the first D' numbers of a head are rotated (partial rotary)
  drop_low  the share of the pairs that is not rotated, those with the lowest frequencies (p-RoPE); the others
            keep their frequencies
"""

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.shared.rotary import Layout, Rotary, even_share


class RoPE(Rotary):
    name = "rope"
    paper = "Su et al. 2021, arXiv 2104.09864; p-RoPE: Barbero et al. 2024, arXiv 2410.06205"
    formula = "pairs of q, k rotated by t * theta_k, theta_k = base^(-2k/D)"
    past_training = "defined everywhere; low frequencies reach angles that training never showed"
    learned = "0"
    decouples = True

    def __init__(
        self, shape: Shape, *, base: float, layout: Layout, fraction: float, drop_low: float
    ) -> None:
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction={fraction}: must be in (0, 1]")
        if not 0 <= drop_low < 1:
            raise ValueError(f"drop_low={drop_low}: must be in [0, 1)")
        super().__init__(shape, base=base, layout=layout, width=even_share(shape, fraction))
        pairs = self.width // 2
        self.unrotated = round(pairs * drop_low)  # pairs
        drops_all = self.unrotated == pairs
        drops_none = drop_low > 0 and self.unrotated == 0
        # Rounded to whole pairs the setting would promise what it does not do.
        if drops_all or drops_none:
            raise ValueError(f"drop_low={drop_low}: drops {self.unrotated} of {pairs} pairs")

    def learned_parameters(self) -> int:
        return 0

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return the frequencies, the dropped ones zero: (D'/2,) float64."""
        theta = super().frequencies(device)  # (D'/2,)
        if self.unrotated:
            # The lowest frequencies are the last ones. A zero turns nothing and keeps the pair's place.
            theta[-self.unrotated :] = 0.0
        return theta
