"""RoPE: rotary position embedding.

Formula: each pair (x_a, x_b) of q and k is turned by the angle t * theta_k, theta_k = base^(-2k/D'),
so that the score depends on i - j alone. D' is the rotated width:
  layout     interleaved pairs (2k, 2k+1) as in the paper, half pairs (k, k + D'/2); same law, other order
  fraction   share of D that is rotated (partial rotary): exponents over the rotated width D' = fraction * D
  drop_low   share of the lowest frequencies that are left still (p-RoPE): exponents over the whole D'
Papers: Su et al. 2021, arXiv 2104.09864; p-RoPE: Barbero et al. 2024, arXiv 2410.06205.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape, float64


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """x (..., T, D') turned by the angles of cos and sin (T, D'/2), in float32, back in x's dtype."""
    f = x.float()
    if layout == "interleaved":
        a, b = f[..., 0::2], f[..., 1::2]  # (..., T, D'/2)
        turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    else:
        a, b = f.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
    return turned.to(x.dtype)  # (..., T, D')


class RoPE(Encoding):
    """Queries and keys turned by an angle that grows with their position."""

    name = "rope"
    paper = "Su et al. 2021, arXiv 2104.09864; p-RoPE: Barbero et al. 2024, arXiv 2410.06205"
    formula = "pairs of q, k turned by t * theta_k, theta_k = base^(-2k/D)"
    acts_on = "rotate"
    past_training = "defined everywhere; low frequencies reach angles that training never showed"

    def __init__(
        self,
        shape: Shape,
        *,
        base: float,
        layout: Literal["interleaved", "half"],
        fraction: float,
        drop_low: float,
    ) -> None:
        super().__init__(shape)
        if shape.head_dim % 2:
            raise ValueError(f"head_dim={shape.head_dim}: rotary pairs need an even head width")
        if not 1 < base < math.inf:
            raise ValueError(f"base={base}: must be a finite number above 1")
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction={fraction}: must be in (0, 1]")
        if not 0 <= drop_low < 1:
            raise ValueError(f"drop_low={drop_low}: must be in [0, 1)")
        self.layout = layout
        self.base = base
        self.width = 2 * round(shape.head_dim * fraction / 2)
        if self.width == 0:
            raise ValueError(f"fraction={fraction}: rotates nothing of head_dim={shape.head_dim}")
        self.still = round(self.width // 2 * drop_low)
        if self.still == self.width // 2:
            raise ValueError(f"drop_low={drop_low}: leaves nothing that turns of {self.still} pairs")

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """theta_k in radians a token, highest first: (D'/2,) float64; dropped ones are zero."""
        k = torch.arange(0, self.width, 2, dtype=torch.float64, device=device)
        theta = self.base ** (-k / self.width)  # (D'/2,)
        if self.still:
            theta[-self.still :] = 0.0
        return theta

    def angles(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of pos * theta, each (T, D'/2) float32; the product in float64."""
        exact = float64(pos)[:, None]  # (T, 1)
        angle = exact * self.frequencies(exact.device)  # (T, D'/2)
        return angle.cos().float().to(pos.device), angle.sin().float().to(pos.device)

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        k_cos, k_sin = self.angles(k_pos)  # (S, D'/2)
        q_cos, q_sin = (k_cos, k_sin) if q_pos is k_pos else self.angles(q_pos)  # (T, D'/2)
        return self._turn(q, q_cos, q_sin), self._turn(k, k_cos, k_sin)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.width == x.shape[-1]:
            return rotate_pairs(x, cos, sin, self.layout)
        turned = rotate_pairs(x[..., : self.width], cos, sin, self.layout)
        return torch.cat((turned, x[..., self.width :]), dim=-1)
