"""Output norm: RMSNorm of what each head returns, before the gate and the output map.

Formula: y_h <- g_h y_h / sqrt(mean(y_h^2) + 1e-6).
  y_h  the output of head h, D numbers
  g_h  D numbers for each layer and head, learned; they start at 1
Setting: `attention.output_norm=true`.
Paper: Lin, Nikishin, He, Courville 2025, arXiv 2503.02130, the "Pro" block; their code has it as
`use_output_norm`, and also norms before it gates.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.attention_options.base import AttentionOption
from posenc.encodings.base import Shape

EPSILON = 1e-6


class OutputNorm(AttentionOption):
    """Bring what each head returns to one size, by RMSNorm."""

    name = "output_norm"
    key = "output_norm"
    choice = bool
    off = False
    acts_on = "output"
    uses_positions = False
    order = -1  # before the gates

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        # not `head_dim`: in latent attention that is the width of the rotary part
        value_width = shape.d_model // shape.n_heads
        self.g = nn.Parameter(torch.ones(shape.n_layers, shape.n_heads, value_width))  # (L, H, D)

    def learned_parameters(self) -> int:
        return self.shape.n_layers * self.shape.d_model

    def output(self, y: Tensor, x: Tensor, layer: int) -> Tensor:
        # In float32, since squares of bf16 numbers would be summed with two digits.
        normed = F.rms_norm(y.float(), y.shape[-1:], eps=EPSILON)  # (B, H, T, D)
        return (normed * self.g[layer][:, None]).to(y.dtype)
