"""Dynamic position bias: a small network from the distance to a bias for each head.

Formula: score_ij + MLP_h(f(i - j)).
  f(r)  log(1 + r) if `log_distance`, else r / T
  MLP   one input, two hidden layers of `hidden` ReLUs, an output for each head; shared by the layers
The network is evaluated once for each distance, not for each pair of tokens.
Departures: the paper has images, whose positions have two dimensions, and its network has layer norms. Here
positions have one dimension, and there are no norms. The last layer starts at zero, so that training begins
without a bias. Without `log_distance` the input is r / T, where the paper takes r itself.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, StepCost, check_at_least, float64


class DynamicBias(Encoding):
    name = "dynamic_bias"
    paper = "Wang et al. 2021 (CrossFormer), arXiv 2108.00154"
    formula = "score_ij + MLP_h(log(1 + i - j)), or of the distance itself"
    acts_on = "bias"
    past_training = "defined everywhere; beyond T the network extrapolates linearly in its input"
    learned = "hidden*hidden + 3*hidden + hidden*H + H"
    relative = True
    inert: Mapping[str, str] = {"b3": "added to all scores of a query, which the softmax takes away"}
    cost = StepCost(at_64=1.09, at_512=1.16)

    def __init__(self, shape: Shape, *, hidden: int, log_distance: bool) -> None:
        super().__init__(shape)
        check_at_least(1, hidden=hidden)
        self.hidden = hidden
        self.log_distance = log_distance
        self.w1 = nn.Parameter(torch.empty(hidden))  # one input
        self.b1 = nn.Parameter(torch.empty(hidden))
        self.w2 = nn.Parameter(torch.empty(hidden, hidden))
        self.b2 = nn.Parameter(torch.empty(hidden))
        self.w3 = nn.Parameter(torch.empty(shape.n_heads, hidden))
        self.b3 = nn.Parameter(torch.empty(shape.n_heads))

    def learned_parameters(self) -> int:
        hidden = self.hidden
        first_layer = 2 * hidden
        second_layer = hidden * hidden + hidden
        return first_layer + second_layer + self.shape.n_heads * (hidden + 1)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name in ("w1", "b1"):
            # so that the ReLUs turn on at many different distances
            nn.init.normal_(parameter, generator=generator)
        elif name == "w2":
            # He's rule, which keeps the variance through a layer of ReLUs.
            nn.init.normal_(parameter, std=(2 / parameter.shape[1]) ** 0.5, generator=generator)
        else:
            nn.init.zeros_(parameter)

    def distance_bias(self, r: Tensor, layer: int) -> Tensor:
        exact = float64(r)  # at r = 65 536 a float32 network of r itself is off by 2e-4
        u = exact.log1p() if self.log_distance else exact / self.shape.train_length  # (R,)
        # parameters() has the order of `__init__`
        w1, b1, w2, b2, w3, b3 = (float64(parameter) for parameter in self.parameters())
        # float64 throughout: there are few distances, so it costs little.
        hidden = F.relu(u[:, None] * w1 + b1)  # (R, hidden)
        hidden = F.relu(F.linear(hidden, w2, b2))  # (R, hidden)
        return F.linear(hidden, w3, b3).T.float().to(r.device)  # (H, R)
