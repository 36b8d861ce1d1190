"""DAPE: a bias by distance that a small network adapts to the scores.

Formula: z_ij + b_ij + MLP([z_ij; b_ij]), for all H heads at once.
  z_ij  the scaled scores of the heads for one pair of tokens
  b_ij  the biases of the heads by distance
  MLP   one for each layer: 2H numbers in, `hidden` leaky ReLUs, H numbers out
Settings:
  bias    the kind of b: KERPLE's logarithm, the paper's best, or ALiBi
  hidden  width of the MLP; 32 as in the paper
The MLP is initialised as in the released code: weights and biases are uniform up to fan_in^-1/2. With zeros
in its last layer the loss was the same, 1.64 nats at T = 64 after 500 000 tokens.
Departure: the layers share KERPLE's parameters, as in `kerple_log`. In the released code each has its own.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc.encodings.alibi import ALiBi
from posenc.encodings.base import Encoding, Shape, StepCost, check_at_least
from posenc.encodings.kerple_log import KerpleLog
from posenc.encodings.shared.head_network import head_network


class DAPE(Encoding):
    name = "dape"
    paper = "Zheng et al. 2024, arXiv 2405.14722"
    formula = "z_ij + b_ij + MLP_h([z_ij; b_ij]), b a bias by distance"
    acts_on = "scores"
    past_training = (
        "the bias continues as its kind does; the network gets values of it never seen in training"
    )
    learned = "L*(hidden*(3*H + 1) + H) + (2*H if bias == 'kerple_log' else 0)"
    relative = True
    inert: Mapping[str, str] = {"b2": "added to all scores of a query, which the softmax takes away"}
    cost = StepCost(at_64=1.83, at_512=4.57)

    def __init__(self, shape: Shape, *, bias: Literal["kerple_log", "alibi"], hidden: int) -> None:
        super().__init__(shape)
        check_at_least(1, hidden=hidden)
        # A whole encoding and no copy of its formula, so that it is initialised and checked as such.
        self.static = KerpleLog(shape) if bias == "kerple_log" else ALiBi(shape, learned_slopes=False)
        self.hidden = hidden
        layers = shape.n_layers
        heads = shape.n_heads
        self.w1 = nn.Parameter(torch.empty(layers, hidden, 2 * heads))  # for the scores, then the biases
        self.b1 = nn.Parameter(torch.empty(layers, hidden))
        self.w2 = nn.Parameter(torch.empty(layers, heads, hidden))
        self.b2 = nn.Parameter(torch.empty(layers, heads))

    def learned_parameters(self) -> int:
        heads = self.shape.n_heads
        network = self.hidden * (2 * heads + 1) + heads * (self.hidden + 1)
        return self.shape.n_layers * network + self.static.learned_parameters()

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        fan_in = 2 * self.shape.n_heads if name in ("w1", "b1") else self.hidden
        nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        r = (q_pos[:, None] - k_pos[None, :]).clamp_min(0)  # (T, S)
        # Computed for every pair, not looked up by distance: the gradient of a look-up is a sum into few
        # places, which is slow on a CPU.
        b = self.static.distance_bias(r.flatten(), layer).unflatten(-1, r.shape)  # (H, T, S)
        return s + b + head_network(s, b, self.w1[layer], self.b1[layer], self.w2[layer], self.b2[layer])
