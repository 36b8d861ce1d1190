"""A gate for each number of what the attention returns.

Formula: y * sigmoid(W x), y the outputs of all heads, before the output map; x the layer's normed input, W of
d x d learned for each layer.
Setting: `attention.gate=element`.
Paper: Qiu et al. 2025 (gated attention), arXiv 2505.06708, its gate on the attention's output.
W is initialised like the model's other linear maps, so that gates start around 1/2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.attention_options.base import NONE, AttentionOption
from posenc.encodings.base import Shape, StepCost


class GateByElement(AttentionOption):
    """Each number of the output times a gate that is made of the layer's input."""

    name = "gate_by_element"
    key = "gate"
    choice = "element"
    off = NONE
    cost = StepCost(at_64=1.12, at_512=1.24)
    acts_on = "output"
    uses_positions = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.w = nn.Parameter(torch.empty(shape.n_layers, shape.d_model, shape.d_model))  # (L, d, d)

    def learned_parameters(self) -> int:
        return self.shape.n_layers * self.shape.d_model**2

    def weights_in_products(self) -> int:
        return self.learned_parameters()

    def output(self, y: Tensor, x: Tensor, layer: int) -> Tensor:
        gates = torch.sigmoid(F.linear(x, self.w[layer]))  # (B, T, d_model)
        by_head = gates.unflatten(-1, (self.shape.n_heads, -1)).transpose(1, 2)  # (B, H, T, D)
        return y * by_head
