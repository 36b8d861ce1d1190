"""FIRE: a learned function of the distance relative to how much text there is.

Formula: score_ij + MLP_h(psi(i - j) / psi(max(i, threshold))).
  psi(x)     log(c x + 1), c > 0 learned
  threshold  learned; a query before it measures distances against it instead of its own position
  MLP        one input, 32 ReLUs, an output for each head
The input of the MLP stays in [0, 1] at any length. It depends on the query's position i, so shifting a text
changes the scores.
Settings:
  threshold  where it starts, in tokens; null: T/4
  shared     one set of parameters for all layers instead of one for each
Paper: Li et al. 2023, arXiv 2310.04418. As there, c starts at 0.1, and what is learned of the threshold is a
factor. Learned in tokens, it would move by the learning rate, a fraction of a token, in a step of Adam.
Departures: the paper's threshold of 512 would never be passed in training at a short T. c and the factor are
kept positive by a softplus, in the released code by an absolute value.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, StepCost, check_at_least
from posenc.encodings.shared.bounded import inverse_soft_floor, soft_floor
from posenc.encodings.shared.relu_network import relu_network

HIDDEN = 32
START_C = 0.1
FLOOR = 1e-6  # of c and the factor: softplus alone is 0 in float32 below -104


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
        self.start = threshold
        self.sets = 1 if shared else shape.n_layers
        self.w1 = nn.Parameter(torch.empty(self.sets, HIDDEN))  # one input
        self.b1 = nn.Parameter(torch.empty(self.sets, HIDDEN))
        self.w2 = nn.Parameter(torch.empty(self.sets, shape.n_heads, HIDDEN))
        self.b2 = nn.Parameter(torch.empty(self.sets, shape.n_heads))
        # Both before their reparametrisation.
        self.c = nn.Parameter(inverse_soft_floor(torch.full((self.sets,), START_C), FLOOR))
        self.factor = nn.Parameter(inverse_soft_floor(torch.ones(self.sets), FLOOR))

    def learned_parameters(self) -> int:
        first_layer = 2 * HIDDEN
        second_layer = self.shape.n_heads * (HIDDEN + 1)
        return self.sets * (first_layer + second_layer + 2)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name in ("c", "factor"):
            return
        # torch's default for linear maps of one and of 32 inputs
        bound = 1.0 if name in ("w1", "b1") else HIDDEN**-0.5
        nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        i = layer % self.sets
        c = soft_floor(self.c[i], FLOOR)
        threshold = self.start * soft_floor(self.factor[i], FLOOR)
        r = (q_pos[:, None] - k_pos[None, :]).clamp_min(0).float()  # (T, S)
        length = torch.maximum(q_pos.float(), threshold)[:, None]  # (T, 1)
        share = torch.log1p(c * r) / torch.log1p(c * length)  # (T, S) in [0, 1], 0 for the future
        network = (self.w1[i], self.b1[i], self.w2[i], self.b2[i])
        return relu_network(share, *(weight.float() for weight in network))  # (H, T, S)
