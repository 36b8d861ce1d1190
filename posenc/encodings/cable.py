"""CABLE: context-aware biases for length extrapolation.

Formula: score_ij - g_i * sum over l = j+1..i of f_l.
  f_l   relu(w_h . x_l): what token l, between the key and the query, takes off the score
  g_i   softplus(v_h . x_i): a factor that the query chooses
  x     the layer's normed input
  w, v  learned for each layer and head (`slope`, `gain`)
With f = 1 and g = m_h, ALiBi's slopes, this is ALiBi.
Setting:
  weighted  false: g = 1, which is the paper's CABLE_NW
Paper: Veisi, Amirzadeh, Mansourian 2025, arXiv 2503.08067 (version 3 has the weights g).
Departures: scores keep 1/sqrt(D), which the paper's formula leaves out. w and v are initialised like the
model's other linear maps. The paper's kernel -log(b^2 + 1) for shallow models is left out.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Shape, StepCost
from posenc.encodings.shared.gates import CumulativeGates


class Cable(CumulativeGates):
    name = "cable"
    paper = "Veisi, Amirzadeh, Mansourian 2025, arXiv 2503.08067"
    formula = "score_ij - softplus(v_h . x_i) * sum over l=j+1..i of relu(w_h . x_l)"
    past_training = "defined everywhere; far keys are penalised by the tokens between them"
    learned = "L*H*d*(2 if weighted else 1)"
    cost = StepCost(at_64=1.26, at_512=1.73)

    def __init__(self, shape: Shape, *, weighted: bool) -> None:
        super().__init__(shape)
        self.slope = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads, shape.d_model))  # w, (L, H, d)
        self.gain = nn.Parameter(torch.empty_like(self.slope)) if weighted else None  # v, (L, H, d)

    def learned_parameters(self) -> int:
        vectors = 1 if self.gain is None else 2
        return vectors * self.shape.n_layers * self.shape.n_heads * self.shape.d_model

    def steps(self, x: Tensor, layer: int) -> Tensor:
        # what a token costs: the base class subtracts the sum of these from the score
        return F.relu(F.linear(x, self.slope[layer]))  # (B, S, H)

    def weight(self, x: Tensor, layer: int) -> Tensor | None:
        if self.gain is None:
            return None
        # Above 0, or far keys would be rewarded by what lies between.
        return F.softplus(F.linear(x, self.gain[layer]))  # (B, S, H)
