"""PaTH: every token between key and query has a Householder-like map, and their product changes the key.

Formula: q_i^T M_i M_{i-1} ... M_{j+1} k_j / sqrt(D) in place of score_ij.
  M_s     I - beta_s w_s w_s^T, the map of token s
  w_s     u_s / |u_s|, the direction that token s takes out of a key
  u_s     D numbers for each head: sum over m = 0..2 of c_m * (B A x_{s-m}), a causal convolution; * is by
          element, and A has `rank` rows
  beta_s  2 sigmoid(v_h . x_s + b_h)
  x       the layer's normed input
A, B, c, v and b are learned for each layer; b starts at 0.
Settings:
  rank    32 as in the released code
  forget  true: scores also get the forget gates of `fox` (PaTH-FoX)
The products over a whole window are computed at once, by one triangular solve (the UT transform), in float32.
Departures: there is no QK-norm. The linear maps start like the model's others. c_m is uniform up to 3^-1/2,
as torch starts a convolution over three tokens; there is no activation after it, which the released module
may have. PaTH-FoX adds the gates to the scaled scores, as `fox` does; the released kernel (fla) adds them
before the scores are divided by sqrt(D).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, StepCost, check_at_least
from posenc.encodings.fox import FoX
from posenc.encodings.shared.blocks import rows_of_block

TAPS = 3  # tokens that the convolution sees


class PaTH(Encoding):
    name = "path"
    paper = "Yang et al. 2025, arXiv 2505.16381"
    formula = "q_i^T prod over s=j+1..i of (I - beta_s w_s w_s^T) k_j / sqrt(D), w and beta from the text"
    acts_on = "scores"
    past_training = "defined everywhere; every token between changes what a query sees of a key"
    learned = "L*(rank*(d + H*D) + 3*H*D + H*(d + 1)*(2 if forget else 1))"
    relative = True
    uses_positions = False
    replaces_product = True
    cost = StepCost(at_64=2.7, at_512=14.8)

    def __init__(self, shape: Shape, *, rank: int, forget: bool) -> None:
        super().__init__(shape)
        check_at_least(1, rank=rank)
        self.rank = rank
        layers = shape.n_layers
        heads = shape.n_heads
        width = heads * shape.head_dim
        self.down = nn.Parameter(torch.empty(layers, rank, shape.d_model))  # A
        self.up = nn.Parameter(torch.empty(layers, width, rank))  # B
        self.taps = nn.Parameter(torch.empty(layers, width, TAPS))  # c_2, c_1, c_0: the token itself last
        self.strength = nn.Parameter(torch.empty(layers, heads, shape.d_model))  # v
        self.offset = nn.Parameter(torch.zeros(layers, heads))  # b
        # The encoding itself and no copy of its formula, so that both forget alike.
        self.fox = FoX(shape) if forget else None

    def learned_parameters(self) -> int:
        heads = self.shape.n_heads
        d_model = self.shape.d_model
        width = heads * self.shape.head_dim
        maps = self.rank * (d_model + width)
        strengths = heads * (d_model + 1)
        forget = 0 if self.fox is None else self.fox.learned_parameters()
        return self.shape.n_layers * (maps + TAPS * width + strengths) + forget

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name == "up":
            # By the rank, which is what this map reads, and not by d_model as the default would.
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5, generator=generator)
        elif name == "taps":
            nn.init.uniform_(parameter, -(TAPS**-0.5), TAPS**-0.5, generator=generator)
        else:
            super().initialize(name, parameter, generator)

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, int, Any]:
        """Return what is taken off q_i . k_j, (B, H, T, S), the window's length, and the state of FoX.

        Token s takes a_sj w_s off key j, where a_sj = beta_s w_s . (k_j - sum over l = j+1..s-1 of a_lj w_l).
        This is a triangular system of equations for a, one for each key. Query i then loses the sum over
        s = j+1..i of q_i . w_s a_sj.
        """
        # A triangular solve needs float32 or wider, and bf16 products would round its equations.
        with torch.autocast(x.device.type, enabled=False):
            exact = x.to(torch.promote_types(self.down.dtype, torch.float32))
            w = self._directions(exact, layer)  # (B, H, S, D)
            beta = self._strengths(exact, layer)  # (B, H, S, 1)
            w_with_w = (beta * (w @ w.transpose(-1, -2))).tril(-1)  # [s, l], l < s: (B, H, S, S)
            w_with_k = (w @ k.float().transpose(-1, -2)).tril(-1)  # [s, j], j < s: (B, H, S, S)
            # `unitriangular` takes the diagonal as 1, which is the a_sj on the left side of the equation.
            a = torch.linalg.solve_triangular(w_with_w, beta * w_with_k, upper=False, unitriangular=True)
            first_query = w.shape[2] - q.shape[2]  # its token
            q_with_w = (q.float() @ w.transpose(-1, -2)).tril(first_query)  # [i, s], s <= i: (B, H, T, S)
            removed = q_with_w @ a  # (B, H, T, S)
            gates = None if self.fox is None else self.fox.prepare(x, q, k, layer)
            return removed, k.shape[2], gates

    def _directions(self, x: Tensor, layer: int) -> Tensor:
        """Return w of every token and head: (B, S, d_model) -> (B, H, S, D)."""
        down, up, taps = (weight[layer].to(x.dtype) for weight in (self.down, self.up, self.taps))
        mapped = F.linear(F.linear(x, down), up)  # (B, S, H * D)
        padded = F.pad(mapped, (0, 0, TAPS - 1, 0))  # zeros before the first token
        u = (padded.unfold(1, TAPS, 1) * taps).sum(-1)  # (B, S, H * D)
        # Of length 1, so that a map with beta below 2 never makes a key longer.
        return F.normalize(u.unflatten(-1, (self.shape.n_heads, -1)), dim=-1).transpose(1, 2)

    def _strengths(self, x: Tensor, layer: int) -> Tensor:
        """Return beta of every token and head: (B, S, d_model) -> (B, H, S, 1)."""
        strength, offset = (weight[layer].to(x.dtype) for weight in (self.strength, self.offset))
        # Up to 2, at which a map is a reflection and a direction is turned round instead of removed.
        beta = 2 * torch.sigmoid(F.linear(x, strength, offset))  # (B, S, H)
        return beta.transpose(1, 2)[..., None]

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        removed, window, gates = state
        keys = s.shape[-1]
        removed_from_block = rows_of_block(removed, window, s)[..., :keys]  # (B, H, T, S)
        # The plain product is in s already, so only what the maps take off it is subtracted.
        s = s - removed_from_block * self.shape.head_dim**-0.5
        if self.fox is None:
            return s
        return self.fox.scores(s, q, k, q_pos, k_pos, gates, layer)
