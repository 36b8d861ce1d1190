"""FoX, the forgetting transformer: a forget gate in the softmax.

Formula: score_ij + sum over l = j+1..i of log sigmoid(w_h . x_l + b_h), x_l the layer's normed input; w, b
for each layer and head. Nothing else says where a token stands.
It acts on the scores. Sums of log gates in float64, their differences in float32.
Start as in the released code: b = 0, so gates start around 1/2; w like the model's other linear maps, which
is d^-1/2 here and 0.02 there.
Paper: Lin, Nikishin, He, Courville 2025, arXiv 2503.02130.
Departures: the forget gate alone, without the QK-norm, output gate, output norm and token shift of the
paper's "Pro" block, so that lines differ in their encoding only.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Shape
from posenc.encodings.families.gates import CumulativeGates


class FoX(CumulativeGates):
    """Every token between key and query lets a learned share of the score pass."""

    name = "fox"
    paper = "Lin, Nikishin, He, Courville 2025, arXiv 2503.02130"
    formula = "score_ij + sum over l=j+1..i of log sigmoid(w_h . x_l + b_h)"
    past_training = "defined everywhere; the far past fades as fast as the gates between forget"
    learned = "L*H*(d + 1)"
    traps = (
        "Cumulative sums in bf16 lose the gates of the nearest tokens: float32 or better.",
        "The sum runs from j+1 to i: the key's own gate does not count, the query's does.",
        "A library starts b at 5 (gates near 1), the released code at 0 (gates near 1/2).",
    )

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.gate = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads, shape.d_model))  # (L, H, d)
        self.offset = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads))  # (L, H)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name == "offset":
            nn.init.zeros_(parameter)
        else:
            super().initialize(name, parameter, generator)

    def steps(self, x: Tensor, layer: int) -> Tensor:
        return -F.logsigmoid(F.linear(x, self.gate[layer], self.offset[layer]))  # (B, S, H)
