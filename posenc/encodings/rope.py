"""RoPE: rotary position embedding.

Formula: each pair (x_a, x_b) of q and k is rotated by the angle t * theta_k, theta_k = base^(-2k/D'), so that
the score depends on i - j. D' is the rotated width:
  layout     interleaved: pairs (2k, 2k+1) as in the paper; half: pairs (k, k + D'/2); same law, other order
  fraction   share of D that is rotated (partial rotary): exponents over D' = fraction * D
  drop_low   share of the lowest frequencies that is not rotated (p-RoPE): exponents over the whole D'
Papers: Su et al. 2021, arXiv 2104.09864; p-RoPE: Barbero et al. 2024, arXiv 2410.06205.
"""

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.families.rotary import Layout, Rotary, even_share


class RoPE(Rotary):
    name = "rope"
    paper = "Su et al. 2021, arXiv 2104.09864; p-RoPE: Barbero et al. 2024, arXiv 2410.06205"
    formula = "pairs of q, k rotated by t * theta_k, theta_k = base^(-2k/D)"
    past_training = "defined everywhere; low frequencies reach angles that training never showed"
    learned = "0"
    decouples = True
    traps = (
        "Tables in bf16 or fp16: positions 256 and 257 become equal.",
        "Public code has the sine twice (norms and the joint shift break), doubled exponents (10000 ** "
        "(-2*arange(0, dim, 2)/dim)), frequency indices from 1, [sin|cos] tables read with a stride of 2.",
        "Fraction and base differ between libraries (25%, 50%, 100%; 10000, 500000).",
        "Partial rotary takes exponents over the rotated width, p-RoPE over the whole one.",
    )

    def __init__(
        self, shape: Shape, *, base: float, layout: Layout, fraction: float, drop_low: float
    ) -> None:
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction={fraction}: must be in (0, 1]")
        if not 0 <= drop_low < 1:
            raise ValueError(f"drop_low={drop_low}: must be in [0, 1)")
        super().__init__(shape, base=base, layout=layout, width=even_share(shape.head_dim, fraction))
        pairs = self.width // 2
        self.still = round(pairs * drop_low)
        if self.still == pairs or (drop_low and not self.still):
            raise ValueError(f"drop_low={drop_low}: drops {self.still} of {pairs} pairs")

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return the frequencies, the dropped ones zero: (D'/2,) float64."""
        theta = super().frequencies(device)  # (D'/2,)
        if self.still:
            theta[-self.still :] = 0.0
        return theta
