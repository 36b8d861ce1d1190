"""Token shift: each key and each value is mixed with that of the token before, by a share that the text sets.

Formula: k_t <- (1 - a_t) k_t + a_t k_(t-1), and the same for values with a share b_t; k_(-1) = v_(-1) = 0.
  a_t   sigmoid(w_h . x_t)
  b_t   sigmoid(u_h . x_t)
  x     the layer's normed input
  w, u  learned for each layer and head
It acts before `attention.qk_norm`.
Setting: `attention.token_shift=true`.
Paper: Lin, Nikishin, He, Courville 2025, arXiv 2503.02130, the "Pro" block; their code has it as
`use_k_shift` and `use_v_shift`.
Departure: w and u are initialised like the model's other linear maps; in the released code the standard
deviation is 0.02. So shares start around 1/2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.attention_options.base import AttentionOption
from posenc.encodings.base import Shape


class TokenShift(AttentionOption):
    """Mix each key and each value with that of the token before, by shares that depend on the text."""

    name = "token_shift"
    key = "token_shift"
    choice = bool
    off = False
    acts_on = "several"
    uses_positions = False
    misfit_of_latents = "its keys and values come from one latent"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        sizes = (shape.n_layers, shape.n_heads, shape.d_model)
        self.w_keys = nn.Parameter(torch.empty(sizes))  # w, (L, H, d_model)
        self.w_values = nn.Parameter(torch.empty(sizes))  # u, (L, H, d_model)

    def learned_parameters(self) -> int:
        return 2 * self.shape.n_layers * self.shape.n_heads * self.shape.d_model

    def weights_in_products(self) -> int:
        return self.learned_parameters()

    def shift(self, k: Tensor, v: Tensor, x: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return _mixed(k, x, self.w_keys[layer]), _mixed(v, x, self.w_values[layer])


def _mixed(tensor: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """Mix (B, H, S, D) with the token before: x (B, S, d_model), w (H, d_model)."""
    # float32: in bf16 a share near 1 is a multiple of 1/256, and so is what is left of 1.
    share = torch.sigmoid(F.linear(x, w).float()).mT[..., None]  # (B, H, S, 1)
    # Zeros come before the first token, as in the formula.
    previous = F.pad(tensor, (0, 0, 1, 0))[:, :, :-1]  # (B, H, S, D)
    return ((1 - share) * tensor + share * previous).to(tensor.dtype)
