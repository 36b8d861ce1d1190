"""PaTH: a product of Householder-like maps, one a token, between the query and the key.

Formula: q_i^T M_i M_{i-1} ... M_{j+1} k_j / sqrt(D) in place of score_ij.
  M_s     I - beta_s w_s w_s^T, the map of token s
  w_s     u_s / |u_s|, the direction that token s takes out of a key
  u_s     sum over m = 0..2 of c_m * (B A x_{s-m}), a causal convolution; A has `rank` rows, c_m has a number
          for each number of each head
  beta_s  2 sigmoid(v_h . x_s + b_h)
  x       the layer's normed input
A, B, c, v and b are learned for each layer; b starts at 0.
Settings:
  rank    32 as in the released code
  forget  true: FoX's gates are added, sum over l = j+1..i of log sigmoid(g_h . x_l + a_h) (PaTH-FoX)
The products over a whole window are computed at once, by one triangular solve (the UT transform), in float32.
Departures: there is no QK-norm. The linear maps start like the model's others. c_m is uniform up to 3^-1/2,
as a convolution over three tokens is in torch, and has no activation, which the released module may apply.
The gates of PaTH-FoX are added as they are, as in encoding=fox; the released kernel (fla) scales them by
D^-1/2 along with the scores.
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
    zero_init = ("offset",)
    cost = StepCost(at_64=2.7, at_512=14.8)

    def __init__(self, shape: Shape, *, rank: int, forget: bool) -> None:
        super().__init__(shape)
        check_at_least(1, rank=rank)
        self.rank = rank
        layers, heads, width = shape.n_layers, shape.n_heads, shape.n_heads * shape.head_dim
        self.down = nn.Parameter(torch.empty(layers, rank, shape.d_model))
        self.up = nn.Parameter(torch.empty(layers, width, rank))
        self.taps = nn.Parameter(torch.empty(layers, width, TAPS))  # the token itself last
        self.strength = nn.Parameter(torch.empty(layers, heads, shape.d_model))
        self.offset = nn.Parameter(torch.empty(layers, heads))
        self.fox = FoX(shape) if forget else None

    def learned_parameters(self) -> int:
        heads, d_model = self.shape.n_heads, self.shape.d_model
        width = heads * self.shape.head_dim
        maps = self.rank * (d_model + width)
        strengths = heads * (d_model + 1)
        forget = 0 if self.fox is None else self.fox.learned_parameters()
        return self.shape.n_layers * (maps + TAPS * width + strengths) + forget

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name == "up":
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5, generator=generator)
        elif name == "taps":
            nn.init.uniform_(parameter, -(TAPS**-0.5), TAPS**-0.5, generator=generator)
        else:
            super().initialize(name, parameter, generator)

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, int, Any]:
        """Return what is taken off the scores, (B, H, T, S), the window's length, and the gates' state."""
        with torch.autocast(x.device.type, enabled=False):
            exact = x.to(self.down.dtype)
            mapped = F.linear(F.linear(exact, self.down[layer]), self.up[layer])  # (B, S, H * D)
            past = F.pad(mapped, (0, 0, TAPS - 1, 0))
            u = (past.unfold(1, TAPS, 1) * self.taps[layer]).sum(-1)  # (B, S, H * D)
            w = F.normalize(u.unflatten(-1, (self.shape.n_heads, -1)), dim=-1).transpose(1, 2)  # (B, H, S, D)
            beta = 2 * torch.sigmoid(F.linear(exact, self.strength[layer], self.offset[layer]))
            beta = beta.transpose(1, 2)[..., None]  # (B, H, S, 1)
            # Token s takes a_s w_s off key j, a_s = beta_s w_s . (k_j - sum over l = j+1..s-1 of a_l w_l).
            triangle = (beta * (w @ w.transpose(-1, -2))).tril(-1)  # (B, H, S, S)
            on_keys = (w @ k.float().transpose(-1, -2)).tril(-1)  # (B, H, S, S): token s meets keys j < s
            a = torch.linalg.solve_triangular(triangle, beta * on_keys, upper=False, unitriangular=True)
            later = w.shape[2] - q.shape[2]
            on_queries = (q.float() @ w.transpose(-1, -2)).tril(later)  # (B, H, T, S): tokens s <= i
            removed = on_queries @ a  # (B, H, T, S)
            gates = None if self.fox is None else self.fox.prepare(x, q, k, layer)
            return removed, k.shape[2], gates

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        removed, window, gates = state
        s = s - rows_of_block(removed, window, s)[..., : s.shape[-1]] * self.shape.head_dim**-0.5
        if self.fox is None:
            return s
        return self.fox.scores(s, q, k, q_pos, k_pos, gates, layer)
