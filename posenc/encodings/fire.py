"""FIRE: a learned function of the distance relative to how much text there is.

Formula: score_ij + MLP_h(psi(i - j) / psi(max(i, threshold))).
  psi(x)     log(c x + 1), c > 0 learned
  threshold  learned; for a query before it, distances are divided by psi(threshold), not by psi(i)
  MLP        one input, 32 ReLUs, an output for each head
The input of the MLP stays in [0, 1] at any length. It depends on the query's position i, so shifting a text
changes the scores.
Settings:
  threshold  where it starts, in tokens; null: T/4
  shared     one set of parameters for all layers instead of one for each
As in the paper, c starts at 0.1, and the threshold is its start times a learned factor. If the number of
tokens itself were learned, a step of Adam would move it by the learning rate, a fraction of a token.
Departures: the paper's threshold starts at 512, which a shorter T never reaches. c and the factor are kept
positive by a softplus; in the released code by an absolute value.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, StepCost, check_at_least
from posenc.encodings.shared.bounded import inverse_soft_floor, soft_floor
from posenc.encodings.shared.relu_network import relu_network

HIDDEN = 32
START_C = 0.1
FLOOR = 1e-6  # least c and factor: in float32 softplus(x) is 0 for x below -104


class FIRE(Encoding):
    name = "fire"
    paper = "Li et al. 2023 (FIRE), arXiv 2310.04418"
    formula = "score_ij + MLP_h(psi(i - j) / psi(max(i, threshold))), psi(x) = log(c x + 1)"
    acts_on = "bias"
    past_training = "the input stays in [0, 1]: longer texts stretch the learned curve"
    learned = "(33*H + 66)*(1 if shared else L)"
    inert: Mapping[str, str] = {"b2": "added to all scores of a query, which the softmax takes away"}
    cost = StepCost(at_64=1.11, at_512=1.43)

    def __init__(self, shape: Shape, *, threshold: float | None, shared: bool) -> None:
        super().__init__(shape)
        if threshold is None:
            threshold = shape.train_length / 4
            self.derived["threshold"] = threshold
        check_at_least(FLOOR, threshold=threshold)
        self.threshold_at_start = threshold
        self.sets = 1 if shared else shape.n_layers
        self.w1 = nn.Parameter(torch.empty(self.sets, HIDDEN))  # one input
        self.b1 = nn.Parameter(torch.empty(self.sets, HIDDEN))
        self.w2 = nn.Parameter(torch.empty(self.sets, shape.n_heads, HIDDEN))
        self.b2 = nn.Parameter(torch.empty(self.sets, shape.n_heads))
        # The raw numbers, of which `soft_floor` makes c and the factor.
        self.c = nn.Parameter(inverse_soft_floor(torch.full((self.sets,), START_C), FLOOR))
        self.factor = nn.Parameter(inverse_soft_floor(torch.ones(self.sets), FLOOR))

    def learned_parameters(self) -> int:
        first_layer = 2 * HIDDEN
        second_layer = self.shape.n_heads * (HIDDEN + 1)
        return self.sets * (first_layer + second_layer + 2)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name in ("c", "factor"):  # these keep the start that `__init__` gives them
            return
        # torch's default for linear maps of one and of 32 inputs
        bound = 1.0 if name in ("w1", "b1") else HIDDEN**-0.5
        nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        # One set serves all layers if it is shared.
        number = layer % self.sets  # of the set of parameters
        c = soft_floor(self.c[number], FLOOR)
        threshold = self.threshold_at_start * soft_floor(self.factor[number], FLOOR)
        r = (q_pos[:, None] - k_pos[None, :]).clamp_min(0).float()  # (T, S)
        # psi(0) is 0, so without the threshold the query at position 0 would divide 0 by 0.
        largest_r = torch.maximum(q_pos.float(), threshold)[:, None]  # (T, 1)
        # `log1p` keeps the digits of a small c r, which a sum with 1 would round away.
        u = torch.log1p(c * r) / torch.log1p(c * largest_r)  # (T, S) in [0, 1], 0 for the future
        network = (self.w1[number], self.b1[number], self.w2[number], self.b2[number])
        return relu_network(u, *(weight.float() for weight in network))  # (H, T, S)
