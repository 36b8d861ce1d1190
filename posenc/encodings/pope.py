"""PoPE: numbers in polar coordinates. The content gives their lengths, the position their angles.

Formula: sum over c < D of softplus(q_ic) softplus(k_jc) cos((i - j) theta_c - delta_c) / sqrt(D) in place of
score_ij.
  theta_c  base^(-c/D)
  delta_c  an angle learned for each layer and head; it starts at zero
In RoPE a pair of numbers has an angle of its own, to which that of the position is added. Here the content
has no angle. Each of the D numbers of a query or key becomes two, its length times a cosine and a sine, so
keys need twice the memory. The scale stays 1/sqrt(D).
Departure: delta is not clamped to [-2 pi, 0]. The angles are the same without the clamp, and with it delta
would get no gradient at the border.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, StepCost
from posenc.encodings.shared.sinusoids import check_base, cos_sin, sinusoid_frequencies


class PoPE(Encoding):
    name = "pope"
    paper = "Gopalakrishnan, Csordas, Schmidhuber, Mozer 2025, arXiv 2509.10534"
    formula = "sum_c softplus(q_c) softplus(k_c) cos((i - j) theta_c - delta_c), theta_c = base^(-c/D)"
    acts_on = "rotate"
    past_training = "defined everywhere; low frequencies reach angles that training never showed"
    learned = "L*H*D"
    relative = True
    scales_with_q = False  # softplus(q)
    cost = StepCost(at_64=1.22, at_512=1.26)

    def __init__(self, shape: Shape, *, base: float) -> None:
        super().__init__(shape)
        check_base(base)
        self.base = base
        self.delta = nn.Parameter(torch.zeros(shape.n_layers, shape.n_heads, shape.head_dim))  # (L, H, D)

    def learned_parameters(self) -> int:
        return self.shape.n_layers * self.shape.n_heads * self.shape.head_dim

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return theta_c in radians a token, highest first: (D,) float64."""
        # Twice the width, since every number of a head has a frequency of its own, and no pair shares one.
        return sinusoid_frequencies(2 * self.shape.head_dim, self.base, device)

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        q_cos, q_sin = cos_sin(q_pos, self.frequencies)  # (T, D)
        k_cos, k_sin = self._key_angles(k_pos, layer)  # (H, S, D)
        return _polar(q, q_cos, q_sin), _polar(k, k_cos, k_sin)

    def _key_angles(self, pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin of pos * theta + delta: (H, S, D) float32 each."""
        cos, sin = cos_sin(pos, self.frequencies)  # (S, D)
        # By the addition theorem, since the sum of a large angle and delta would be rounded in float32.
        delta = self.delta[layer].float()[:, None]  # (H, 1, D)
        delta_cos = delta.cos()
        delta_sin = delta.sin()
        return cos * delta_cos - sin * delta_sin, sin * delta_cos + cos * delta_sin


def _polar(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return lengths softplus(x) at angles with this cos and sin: (B, H, T, D) -> (B, H, T, 2D)."""
    # Above 0: a negative length would be an angle that the content adds.
    length = F.softplus(x.float())  # (B, H, T, D)
    return torch.cat((length * cos, length * sin), dim=-1).to(x.dtype)
