"""A gate for each head on what its attention returns.

Formula: y_h * sigmoid(w_h . x), y_h the output of head h, before the output map; x the layer's normed input,
w learned for each layer and head.
Setting: `attention.gate=head`.
Paper: Qiu et al. 2025 (gated attention), arXiv 2505.06708, its gate on the attention's output.
w is initialised like the model's other linear maps, so that gates start around 1/2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.attention_options.base import NONE, AttentionOption
from posenc.encodings.base import Shape, StepCost


class GateByHead(AttentionOption):
    """Each head's output times a gate that is made of the layer's input."""

    name = "gate_by_head"
    key = "gate"
    choice = "head"
    off = NONE
    cost = StepCost(at_64=1.11, at_512=1.08)
    acts_on = "output"
    uses_positions = False

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.w = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads, shape.d_model))  # (L, H, d_model)

    def learned_parameters(self) -> int:
        return self.w.numel()

    def weights_in_products(self) -> int:
        return self.learned_parameters()

    def output(self, y: Tensor, x: Tensor, layer: int) -> Tensor:
        gates = torch.sigmoid(F.linear(x, self.w[layer]))  # (B, T, H)
        return y * gates.mT[..., None]
