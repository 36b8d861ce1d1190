"""RePo: RoPE whose position is computed by each head from the token, not counted along the text.

Formula: pairs (2k, 2k+1) of q_t and k_t are rotated by z_th theta_k.
  z_th     the position of token t for head h, a real number: w_h . (silu(G x_t) * (C x_t))
  theta_k  base^(-2k/D)
  x        the layer's normed input
  G, C, w  learned for each layer: G and C (m, d) with m = d/8, w (H, m)
Setting:
  plain_layers  how many of the first layers have plain RoPE. Without them only the causal mask would tell the
                order. null: 5 of 16 layers, as in the released configuration
Source: the authors' code (`swigluex_multihead`), which continues the training of a RoPE model.
Departure: trained from the start; G, C and w start like the model's other linear maps.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, StepCost, check_at_least, float64
from posenc.encodings.shared.rotary import check_pairs, rotate_pairs
from posenc.encodings.shared.sinusoids import check_base, cos_sin, sinusoid_frequencies

PUBLISHED_PLAIN_SHARE = 5 / 16  # of the layers
NARROWER = 8  # d / m


class RePo(Encoding):
    name = "repo"
    paper = "Li, Zhao, Cai, Sproat 2025, arXiv 2512.14391"
    formula = "pairs of q, k rotated by z theta_k, z_h = w_h . (silu(G x) * (C x)); first layers plain RoPE"
    acts_on = "several"
    past_training = "positions made of the text stay where training had them; plain layers reach new angles"
    learned = "(L - round(L*5/16) if plain_layers is None else L - plain_layers)*(2*d + H)*max(1, d//8)"
    relative = True
    replaces_product = True
    cost = StepCost(at_64=1.44, at_512=1.3)

    def __init__(self, shape: Shape, *, base: float, plain_layers: int | None) -> None:
        super().__init__(shape)
        check_pairs(shape)
        check_base(base)
        if plain_layers is None:
            plain_layers = round(PUBLISHED_PLAIN_SHARE * shape.n_layers)
            self.derived["plain_layers"] = plain_layers
        check_at_least(0, plain_layers=plain_layers)
        if plain_layers >= shape.n_layers:
            raise ValueError(f"plain_layers={plain_layers}: must be below the {shape.n_layers} layers")
        self.base = base
        self.plain_layers = plain_layers
        # The other layers make their positions of the text alone.
        self.uses_positions = plain_layers > 0
        self.width = max(1, shape.d_model // NARROWER)  # m
        layers = shape.n_layers - plain_layers  # those with positions of their own
        self.gate = nn.Parameter(torch.empty(layers, self.width, shape.d_model))  # G
        self.content = nn.Parameter(torch.empty(layers, self.width, shape.d_model))  # C
        self.position = nn.Parameter(torch.empty(layers, shape.n_heads, self.width))  # w

    def learned_parameters(self) -> int:
        layers = self.shape.n_layers - self.plain_layers
        return layers * self.width * (2 * self.shape.d_model + self.shape.n_heads)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name == "position":
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5, generator=generator)
        else:
            super().initialize(name, parameter, generator)

    def unrotated_numbers(self, layer: int) -> list[int]:
        return []

    def positions_of_text(self, x: Tensor, layer: int) -> Tensor:
        """Return z of every head and token, (B, S, d_model) -> (B, H, S) float64."""
        number = layer - self.plain_layers  # among the layers with parameters
        exact = x.to(self.gate.dtype)  # a bf16 product would round positions
        gate = F.silu(F.linear(exact, self.gate[number]))  # (B, S, m)
        content = F.linear(exact, self.content[number])  # (B, S, m)
        return float64(F.linear(gate * content, self.position[number]).mT)

    def adjust(
        self, q: Tensor, k: Tensor, x: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int
    ) -> tuple[Tensor, Tensor]:
        # Rotated in this hook, since `rotate` does not see the text.
        with torch.autocast(x.device.type, enabled=False):
            if layer < self.plain_layers:
                cos, sin = cos_sin(k_pos, self.frequencies)  # (S, D/2)
                cos = cos[None, None]
                sin = sin[None, None]
            else:
                z = self.positions_of_text(x, layer)  # (B, H, S)
                # In float64 like other angles, since a computed position may be as large as a counted one.
                angle = z[..., None] * self.frequencies(z.device)  # (B, H, S, D/2)
                cos = angle.cos().float()
                sin = angle.sin().float()
            cos = cos.to(q.device)
            sin = sin.to(q.device)
            start = k.shape[2] - q.shape[2]  # the token of the first query
            rotated_q = rotate_pairs(q, cos[:, :, start:], sin[:, :, start:], "interleaved")
            rotated_k = rotate_pairs(k, cos, sin, "interleaved")
            return rotated_q, rotated_k

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return theta_k in radians a position, highest first: (D/2,) float64."""
        return sinusoid_frequencies(self.shape.head_dim, self.base, device)
