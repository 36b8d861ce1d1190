"""FoX, the forgetting transformer: a forget gate for every token, and no other encoding of positions.

Formula: score_ij + sum over l = j+1..i of log sigmoid(w_h . x_l + b_h).
  x     the layer's normed input
  w, b  learned for each layer and head
A sum from j+1 to i is the difference of two sums from the beginning of the text. These are float64, since the
rounding of a long float32 sum would be as large as a difference of few terms. Differences are float32.
Initialisation: b is 0 as in the released code, so that gates are around 1/2. w has the standard deviation
d^-1/2 of the model's other linear maps; in the released code it is 0.02.
This is the forget gate alone. The paper's "Pro" block, with QK norm, output gate, output norm and token
shift, is `experiment=fox_pro`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Shape, StepCost
from posenc.encodings.shared.gates import CumulativeGates


class FoX(CumulativeGates):
    name = "fox"
    paper = "Lin, Nikishin, He, Courville 2025, arXiv 2503.02130"
    formula = "score_ij + sum over l=j+1..i of log sigmoid(w_h . x_l + b_h)"
    past_training = "defined everywhere; the far past fades as fast as the gates forget"
    learned = "L*H*(d + 1)"
    cost = StepCost(at_64=1.2, at_512=1.73)

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.gate = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads, shape.d_model))  # w, (L, H, d)
        self.offset = nn.Parameter(torch.zeros(shape.n_layers, shape.n_heads))  # b, (L, H)

    def learned_parameters(self) -> int:
        return self.shape.n_layers * self.shape.n_heads * (self.shape.d_model + 1)

    def steps(self, x: Tensor, layer: int) -> Tensor:
        # what a token costs: the base class subtracts the sum of these from the score
        return -F.logsigmoid(F.linear(x, self.gate[layer], self.offset[layer]))  # (B, S, H)
