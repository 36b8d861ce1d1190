"""FIRE: a learned function of the distance relative to how much text there is.

Formula: score_ij + MLP_h(psi(i - j) / psi(max(i, threshold))), psi(x) = log(c x + 1), the MLP with one
input, 32 ReLUs and an output for each head; c > 0 and threshold > 0 learned. The input stays in [0, 1]
at any length.
It acts on the scores as a bias that needs the query's own position, so it is not shift-invariant. Parameters
for each layer, or `shared` by them.
Paper: Li et al. 2023, arXiv 2310.04418. c starts at 0.1 as there; of the threshold a factor on its start is
learned, as there: learned in tokens, a step of Adam would move it by the learning rate.
Departures: the threshold starts at T/4 unless set: the paper's 512 would never be passed in training at a
short T, and what comes after it never learned. c and the factor stay positive by a softplus, where the
released code takes absolute values.
The network is looked up as the piecewise linear function that it is: (T, T, 32) numbers are never made.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.families.piecewise import relu_network
from posenc.encodings.families.positive import above, raw_above

HIDDEN = 32
START_C = 0.1
FLOOR = 1e-6  # of c and of the threshold's factor: the softplus alone is 0 in float32 below -104


class FIRE(Encoding):
    """Functional interpolation: the distance as a share of the text seen so far."""

    name = "fire"
    paper = "Li et al. 2023 (FIRE), arXiv 2310.04418"
    formula = "score_ij + MLP_h(psi(i - j) / psi(max(i, threshold))), psi(x) = log(c x + 1)"
    acts_on = "bias"
    past_training = "the input stays in [0, 1]: longer texts stretch the learned curve, ever more slowly"
    learned = "(33*H + 66)*(1 if shared else L)"
    traps = (
        "A network over every pair holds (T, T, hidden) numbers: 33 MB a layer at T = 512 already.",
        "A threshold above T is never passed in training.",
        "c and the threshold must stay positive by a reparametrisation, not by a clamp through `.data`.",
    )

    def __init__(self, shape: Shape, *, threshold: float | None, shared: bool) -> None:
        super().__init__(shape)
        if threshold is None:
            threshold = shape.train_length / 4
            self.derived["threshold"] = threshold
        if not FLOOR <= threshold < math.inf:
            raise ValueError(f"threshold={threshold}: must be a finite number of at least {FLOOR:g}")
        self.start = threshold
        places = 1 if shared else shape.n_layers
        self.w1 = nn.Parameter(torch.empty(places, HIDDEN))  # one input
        self.b1 = nn.Parameter(torch.empty(places, HIDDEN))
        self.w2 = nn.Parameter(torch.empty(places, shape.n_heads, HIDDEN))
        self.b2 = nn.Parameter(torch.empty(places, shape.n_heads))
        self.c = nn.Parameter(torch.empty(places))  # before its reparametrisation, as the factor
        self.factor = nn.Parameter(torch.empty(places))

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name in ("c", "factor"):
            value = START_C if name == "c" else 1.0
            parameter.copy_(raw_above(torch.full_like(parameter, value), FLOOR))
        else:  # as the framework starts linear maps of one and of 32 inputs
            bound = 1.0 if name in ("w1", "b1") else HIDDEN**-0.5
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def share(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        """psi(i - j) / psi(max(i, threshold)) in [0, 1], the future at 0: (T, S) float32."""
        place = layer % len(self.c)
        c, threshold = above(self.c[place], FLOOR), self.start * above(self.factor[place], FLOOR)
        r = (q_pos[:, None] - k_pos[None, :]).clamp_min(0).float()  # (T, S)
        whole = torch.maximum(q_pos.float(), threshold)[:, None]  # (T, 1)
        return torch.log1p(c * r) / torch.log1p(c * whole)

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        place = layer % len(self.c)
        weights = (one[place].float() for one in (self.w1, self.b1, self.w2, self.b2))
        return relu_network(self.share(q_pos, k_pos, layer), *weights)  # (H, T, S)
