"""DAPE: a bias by distance that a small network adapts to the scores.

Formula: score_ij = z_ij + b_ij + MLP_h([z_ij; b_ij]), z the scaled scores and b the bias of all heads at this
pair, the MLP from 2H numbers over `hidden` leaky ReLUs to H; one for each layer.
It acts on the scores. `bias` is what b is: KERPLE with the logarithm (the paper's best) or ALiBi.
Paper: Zheng et al. 2024, arXiv 2405.14722; hidden = 32 as there.
Departures: the network's last layer starts at zero, so that training begins with the bias alone.
Cost: `hidden` numbers for every pair of tokens, made anew in the backward pass instead of kept.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from posenc.encodings.alibi import ALiBi
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.families.heads import over_heads
from posenc.encodings.kerple_log import KerpleLog


class DAPE(Encoding):
    """A static bias, and a network over heads that reads it beside the scores."""

    name = "dape"
    paper = "Zheng et al. 2024, arXiv 2405.14722"
    formula = "z_ij + b_ij + MLP_h([z_ij; b_ij]), b a bias by distance"
    acts_on = "scores"
    past_training = "the bias goes on as its own kind does; the network meets values of it that it never saw"
    learned = "L*(hidden*(3*H + 1) + H) + (2*H if bias == 'kerple_log' else 0)"
    relative = True
    traps = (
        "hidden numbers for every pair of tokens and layer: kept for the backward pass they are gigabytes.",
    )

    def __init__(self, shape: Shape, *, bias: Literal["kerple_log", "alibi"], hidden: int) -> None:
        super().__init__(shape)
        if hidden < 1:
            raise ValueError(f"hidden={hidden}: must be at least 1")
        self.static = KerpleLog(shape) if bias == "kerple_log" else ALiBi(shape, learned_slopes=False)
        layers, heads = shape.n_layers, shape.n_heads
        self.w1 = nn.Parameter(torch.empty(layers, hidden, 2 * heads))  # on the scores, then on the bias
        self.b1 = nn.Parameter(torch.empty(layers, hidden))
        self.w2 = nn.Parameter(torch.empty(layers, heads, hidden))
        self.b2 = nn.Parameter(torch.empty(layers, heads))

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name.startswith("static."):
            self.static.initialize(name.removeprefix("static."), parameter, generator)
        elif name in ("w1", "b1"):
            bound = (2 * self.shape.n_heads) ** -0.5
            nn.init.uniform_(parameter, -bound, bound, generator=generator)
        else:
            nn.init.zeros_(parameter)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        r = (q_pos[:, None] - k_pos[None, :]).clamp_min(0)  # (T, S)
        # Computed for every pair: the gradient of a look-up is a sum into few places, and slow on a CPU.
        b = self.static.distance_bias(r.flatten(), layer).unflatten(-1, r.shape)  # (H, T, S)
        weights = (one[layer] for one in (self.w1, self.b1, self.w2, self.b2))
        return s + b + over_heads(s, b, *weights)
