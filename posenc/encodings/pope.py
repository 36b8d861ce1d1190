"""PoPE: polar coordinates. What a token is sets the lengths, where it is sets the angles, and neither both.

Formula: score_ij = sum over c < D of softplus(q_ic) softplus(k_jc) cos((i - j) theta_c - delta_c) / sqrt(D),
theta_c = base^(-c/D), delta_c learned for each layer and head. In RoPE a pair's own angle adds to that of its
position; here content has no angle.
It acts on queries and keys, each of whose D numbers becomes two (length times cosine and sine): keys need
twice the room. The scale is that of the head width D.
Paper: Gopalakrishnan, Csordas, Schmidhuber, Mozer 2025, arXiv 2509.10534, cos((j - i) theta_c + delta_c).
delta starts at zero, one of the paper's two choices.
Departures: delta is not clamped to [-2 pi, 0]: an angle beyond a turn is the same angle, and a clamp stops
the gradient.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.families.absolute import check_base, sinusoid_frequencies
from posenc.encodings.families.rotary import cos_sin


class PoPE(Encoding):
    """Lengths from the content, angles from the position."""

    name = "pope"
    paper = "Gopalakrishnan, Csordas, Schmidhuber, Mozer 2025, arXiv 2509.10534"
    formula = "sum_c softplus(q_c) softplus(k_c) cos((i - j) theta_c - delta_c), theta_c = base^(-c/D)"
    acts_on = "rotate"
    past_training = "defined everywhere; low frequencies reach angles that training never showed"
    learned = "L*H*D"
    relative = True
    traps = (
        "There are D frequencies, not D/2: every number of a head has an angle of its own.",
        "delta belongs to the keys alone: added to queries too it cancels.",
        "The head widens to 2D, the scale stays 1/sqrt(D).",
    )

    def __init__(self, shape: Shape, *, base: float) -> None:
        super().__init__(shape)
        check_base(base)
        self.base = base
        self.delta = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads, shape.head_dim))  # (L, H, D)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        nn.init.zeros_(parameter)

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """theta_c in radians a token, highest first: (D,) float64."""
        return sinusoid_frequencies(2 * self.shape.head_dim, self.base, device)

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return self._polar(q, q_pos, None), self._polar(k, k_pos, layer)

    def _polar(self, x: Tensor, pos: Tensor, layer: int | None) -> Tensor:
        """x (B, H, T, D) -> (B, H, T, 2D); keys (those with a layer) are turned further by delta."""
        cos, sin = cos_sin(pos, self.frequencies)  # (T, D)
        if layer is not None:
            # cos(a + b) and sin(a + b), so that the float32 delta never meets a large angle
            delta = self.delta[layer].float()[:, None]  # (H, 1, D)
            near, off = delta.cos(), delta.sin()
            cos, sin = cos * near - sin * off, sin * near + cos * off  # (H, T, D)
        length = F.softplus(x.float())
        return torch.cat((length * cos, length * sin), dim=-1).to(x.dtype)
