"""RoPE++: half of the heads score by the real part of RoPE's complex product, half by its imaginary part.

Formula: z_ij = sum over c < D/2 of q_ic conj(k_jc) exp(sqrt(-1) (i - j) theta_c), where pairs (2c, 2c+1) are
complex numbers and theta_c = base^(-2c/D).
  head h        of the first half has the scores Re z_ij, which is RoPE
  head h + H/2  has the scores Im z_ij of the *same* q and k: RoPE with q turned back by a right angle
Of an odd number of heads the middle one has no partner.
Setting:
  layout  as in `rope`
Source: the paper's equations and the authors' code; of the text itself only the abstract was at hand.
Departures: the paper has more heads for the same weights (EC), or fewer weights for the same heads (EH). Here
the model's size is fixed. It computes as EH does, and the second half of the maps to queries and keys is
there, but unused. Each head has its own values; the paper's pairs of heads share them.
"""

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.shared.rotary import Layout, check_pairs, rotate_pairs
from posenc.encodings.shared.sinusoids import check_base, cos_sin, sinusoid_frequencies


class RoPEPlusPlus(Encoding):
    name = "rope_pp"
    paper = "Liu et al. 2025 (Beyond Real), arXiv 2512.07525"
    formula = "head h: Re z_ij of RoPE's complex product; head h + H/2: Im z_ij of the same q and k"
    acts_on = "rotate"
    past_training = "defined everywhere; low frequencies reach angles that training never showed"
    learned = "0"
    relative = True

    def __init__(self, shape: Shape, *, base: float, layout: Layout) -> None:
        super().__init__(shape)
        check_pairs(shape)
        check_base(base)
        self.base = base
        self.layout = layout
        self.head_pairs = shape.n_heads // 2  # of a real and an imaginary head each

    def learned_parameters(self) -> int:
        return 0

    def warnings(self) -> list[str]:
        if not self.head_pairs:
            return ["plain RoPE: a pair of heads takes two"]
        unused = 2 * self.head_pairs * self.shape.head_dim * self.shape.d_model
        return [f"{unused:,} weights of each layer's queries and keys are unused: half of the heads share"]

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return theta_k in radians a token, highest first: (D/2,) float64."""
        return sinusoid_frequencies(self.shape.head_dim, self.base, device)

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        real_heads = q.shape[1] - self.head_pairs  # with the head that has no partner
        q_cos, q_sin = cos_sin(q_pos, self.frequencies)  # (T, D/2)
        k_cos, k_sin = cos_sin(k_pos, self.frequencies)  # (S, D/2)
        real_q = rotate_pairs(q[:, :real_heads], q_cos, q_sin, self.layout)  # (B, real heads, T, D)
        # turned back by a right angle: cos(a - pi/2) = sin a, and sin(a - pi/2) = -cos a
        imaginary_q = rotate_pairs(q[:, : self.head_pairs], q_sin, -q_cos, self.layout)
        real_k = rotate_pairs(k[:, :real_heads], k_cos, k_sin, self.layout)
        # The partner's keys, turned already: only the query differs by a right angle.
        imaginary_k = real_k[:, : self.head_pairs]  # (B, H/2, S, D)
        return torch.cat((real_q, imaginary_q), dim=1), torch.cat((real_k, imaginary_k), dim=1)
