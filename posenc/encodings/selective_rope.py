"""Selective RoPE: each token turns the angles by an amount of its own, forwards or backwards.

Formula: pair k of q_t and k_t is rotated by theta_k * sum over s <= t of g_h(x_s) phi_hk(s).
  theta_k  base^(-2k/D)
  phi(s)   a number for each head and pair: sum over m = 0..3 of c_m * (B A x'_{s-m}), a causal convolution;
           * is by element, and A has `rank` rows
  g_h(x)   sigmoid(v_h . x' + b_h)
  x'       the layer's normed input x, with each head's part of it scaled to length 1
A, B, c, v and b are learned for each layer; b starts at 0. The sums are float64.
Settings:
  base  of theta; 500000 as in the released code
  rank  of the linear map B A; 16 as in the released code
  gate  false: g = 1
Departures: pairs are (2k, 2k+1). The linear maps start like the model's others. c_m is uniform up to 1/2, as
torch starts a convolution over four tokens.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Shape, StepCost, check_at_least, float64
from posenc.encodings.shared.phases import PhaseSums
from posenc.encodings.shared.rotary import check_pairs
from posenc.encodings.shared.sinusoids import check_base, sinusoid_frequencies

TAPS = 4  # tokens that the convolution sees


class SelectiveRoPE(PhaseSums):
    name = "selective_rope"
    paper = "Movahedi et al. 2025 (Selective Rotary Position Embedding), arXiv 2511.17388"
    formula = "pair k of q, k rotated by theta_k * sum over s <= t of g_h(x_s) phi_hk(x_s-3..s)"
    past_training = "defined everywhere; sums of either sign, so angles wander more slowly than RoPE's"
    learned = "L*(rank*(d + H*D//2) + 4*H*D//2 + (H*(d + 1) if gate else 0))"
    cost = StepCost(at_64=1.86, at_512=2.38)

    def __init__(self, shape: Shape, *, base: float, rank: int, gate: bool) -> None:
        super().__init__(shape)
        check_pairs(shape)
        check_base(base)
        check_at_least(1, rank=rank)
        self.base = base
        self.rank = rank
        layers = shape.n_layers
        heads = shape.n_heads
        pairs = heads * shape.head_dim // 2
        self.down = nn.Parameter(torch.empty(layers, rank, shape.d_model))  # A
        self.up = nn.Parameter(torch.empty(layers, pairs, rank))  # B
        self.taps = nn.Parameter(torch.empty(layers, pairs, TAPS))  # c_3, ..., c_0: the token itself last
        self.gate = nn.Parameter(torch.empty(layers, heads, shape.d_model)) if gate else None  # v
        self.offset = nn.Parameter(torch.zeros(layers, heads)) if gate else None  # b

    def learned_parameters(self) -> int:
        heads = self.shape.n_heads
        d_model = self.shape.d_model
        pairs = heads * self.shape.head_dim // 2
        increments = self.rank * (d_model + pairs) + TAPS * pairs
        gate = 0 if self.gate is None else heads * (d_model + 1)
        return self.shape.n_layers * (increments + gate)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name == "up":
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5, generator=generator)
        elif name == "taps":
            nn.init.uniform_(parameter, -(TAPS**-0.5), TAPS**-0.5, generator=generator)
        else:
            super().initialize(name, parameter, generator)

    def increments(self, x: Tensor, layer: int) -> Tensor:
        heads = self.shape.n_heads
        unit_x = F.normalize(x.unflatten(-1, (heads, -1)), dim=-1).flatten(-2)  # x', (B, S, d)
        mapped = F.linear(F.linear(unit_x, self.down[layer]), self.up[layer])  # (B, S, H * D/2)
        padded = F.pad(mapped, (0, 0, TAPS - 1, 0))  # zeros before the first token
        convolved = (padded.unfold(1, TAPS, 1) * self.taps[layer]).sum(-1)  # (B, S, H * D/2)
        # Before the sum along the text, which `PhaseSums` makes of it.
        phi = float64(convolved).unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, H, S, D/2)
        if self.gate is not None and self.offset is not None:
            gate = torch.sigmoid(F.linear(unit_x, self.gate[layer], self.offset[layer]))  # (B, S, H)
            # Before theta: a gate of 0 stops all pairs of a head alike.
            phi = phi * gate.to(phi).transpose(1, 2)[..., None]
        return phi * sinusoid_frequencies(self.shape.head_dim, self.base, phi.device)
