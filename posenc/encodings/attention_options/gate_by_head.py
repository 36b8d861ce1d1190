"""A gate for each head, on what its attention returns.

Formula: y_h * sigmoid(w_h . x).
  y_h  the output of head h, before the output map
  x    the layer's normed input
  w    learned for each layer and head
Setting: `attention.gate=head`.
Paper: Qiu et al. 2025 (gated attention), arXiv 2505.06708, its gate on the attention's output.
w is initialised like the model's other linear maps, so that gates start around 1/2.
"""

from torch import Tensor

from posenc.encodings.attention_options.base import Gate
from posenc.encodings.base import Shape, StepCost


class GateByHead(Gate):
    """Multiply each head's output by a gate that is made of the layer's input."""

    name = "gate_by_head"
    key = "gate"
    choice = "head"
    cost = StepCost(at_64=1.11, at_512=1.08)  # step time of rope over that without it, T = 64 and 512

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape, gates=shape.n_heads)

    def output(self, y: Tensor, x: Tensor, layer: int) -> Tensor:
        gates = self.gates(x, layer).mT  # (B, H, T)
        return y * gates[..., None]  # (B, H, T, D)
