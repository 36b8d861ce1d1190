"""A gate for each number of what the attention returns.

Formula: y * sigmoid(W x).
  y  the outputs of all heads, before the output map
  x  the layer's normed input
  W  (d, d), learned for each layer
Setting: `attention.gate=element`.
Paper: Qiu et al. 2025 (gated attention), arXiv 2505.06708, its gate on the attention's output.
W is initialised like the model's other linear maps, so that gates start around 1/2.
"""

from torch import Tensor

from posenc.encodings.attention_options.base import Gate
from posenc.encodings.base import Shape, StepCost


class GateByElement(Gate):
    """Multiply each number of the output by a gate that is made of the layer's input."""

    name = "gate_by_element"
    key = "gate"
    choice = "element"
    cost = StepCost(at_64=1.12, at_512=1.24)  # step time of rope over that without it, T = 64 and 512

    def __init__(self, shape: Shape) -> None:
        # d_model and not H D of queries and keys: the gates multiply values, whose heads are d_model wide
        # together.
        super().__init__(shape, gates=shape.d_model)

    def output(self, y: Tensor, x: Tensor, layer: int) -> Tensor:
        gates = self.gates(x, layer).unflatten(-1, (self.shape.n_heads, -1))  # (B, T, H, D)
        return y * gates.transpose(1, 2)  # (B, H, T, D)
