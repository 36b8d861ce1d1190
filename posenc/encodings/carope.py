"""CARoPE: rotary angles that grow by a number that each head computes from each token.

Formula: pair k = 1..D/2 of q_t and k_t is rotated by the sum over s <= t of f_h(x_s)^k.
  f_h(x)  1 / (1 + softplus(w_h . x)), in (0, 1)
  x       the layer's normed input
  w       learned for each layer and head
With f = base^(-2/D) for every token this is RoPE, but with k from 1 instead of 0. The sums are float64.
Departures: x is the input of each layer; the paper speaks of token embeddings. Pairs are (2k, 2k+1). w starts
like the model's other linear maps, so that f is around 0.6; the paper starts from RoPE.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Shape, StepCost, float64
from posenc.encodings.shared.phases import PhaseSums
from posenc.encodings.shared.rotary import check_pairs


class CARoPE(PhaseSums):
    name = "carope"
    paper = "Veisi et al. 2025, arXiv 2507.23083"
    formula = "pair k of q, k rotated by the sum over s <= t of (1 / (1 + softplus(w_h . x_s)))^k"
    past_training = "defined everywhere; slow pairs reach angles that training never showed"
    learned = "L*H*d"
    cost = StepCost(at_64=1.68, at_512=2.26)

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        check_pairs(shape)
        sizes = (shape.n_layers, shape.n_heads, shape.d_model)
        self.frequency = nn.Parameter(torch.empty(sizes))  # w, (L, H, d)

    def learned_parameters(self) -> int:
        return self.shape.n_layers * self.shape.n_heads * self.shape.d_model

    def increments(self, x: Tensor, layer: int) -> Tensor:
        # Before the sum along the text, whose errors grow with its length.
        product = float64(F.linear(x, self.frequency[layer])).transpose(1, 2)[..., None]  # (B, H, S, 1)
        # By the logarithm, so that the powers of all pairs come from one exponential.
        log_f = -torch.log1p(F.softplus(product))  # (B, H, S, 1)
        k = torch.arange(1, self.shape.head_dim // 2 + 1, device=product.device)  # (D/2,)
        return (log_f * k).exp()  # f^k, (B, H, S, D/2)
