"""PoPE: polar coordinates. Content sets the lengths, position the angles.

Formula: sum over c < D of softplus(q_ic) softplus(k_jc) cos((i - j) theta_c - delta_c) / sqrt(D) in place of
score_ij.
  theta_c  base^(-c/D)
  delta_c  an angle learned for each layer and head; it starts at zero
In RoPE the angle of a pair of numbers adds to that of its position. Here content has no angle. Each of the D
numbers of queries and keys becomes two (its length times cosine and sine), so keys need twice the memory. The
scale stays 1/sqrt(D).
Departure: delta is not clamped to [-2 pi, 0]: an angle beyond a turn is the same angle, and a clamp stops the
gradient.
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
    zero_init = ("delta",)
    relative = True
    cost = StepCost(at_64=1.22, at_512=1.26)

    def __init__(self, shape: Shape, *, base: float) -> None:
        super().__init__(shape)
        check_base(base)
        self.base = base
        self.delta = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads, shape.head_dim))  # (L, H, D)

    def learned_parameters(self) -> int:
        return self.shape.n_layers * self.shape.n_heads * self.shape.head_dim

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return theta_c in radians a token, highest first: (D,) float64."""
        return sinusoid_frequencies(2 * self.shape.head_dim, self.base, device)

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self._polar(q, q_pos, None), self._polar(k, k_pos, layer)

    def _polar(self, x: Tensor, pos: Tensor, layer: int | None) -> Tensor:
        """Return x (B, H, T, D) as (B, H, T, 2D); with a `layer` x are keys, which delta rotates as well."""
        cos, sin = cos_sin(pos, self.frequencies)  # (T, D)
        if layer is not None:
            # cos(a + b), sin(a + b) by the addition theorem: a large angle plus delta would round in float32
            delta = self.delta[layer].float()[:, None]  # (H, 1, D)
            delta_cos = delta.cos()
            delta_sin = delta.sin()
            cos, sin = cos * delta_cos - sin * delta_sin, sin * delta_cos + cos * delta_sin  # (H, T, D)
        length = F.softplus(x.float())
        return torch.cat((length * cos, length * sin), dim=-1).to(x.dtype)
