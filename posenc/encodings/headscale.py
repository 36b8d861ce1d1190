"""HeadScale: NoPE with a learned softmax temperature for each head and layer.

Formula: f_h score_ij.
  f_h  learned for each layer and head; it starts at 1, where this is `nope`
Departures: f is trained with the model from the first step, and may become any number. The paper takes a
model that was trained with NoPE and tunes f alone, at a longer length and within a range. In a sum of
encodings the biases of the other parts are scaled like the score.
"""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, StepCost


class HeadScale(Encoding):
    name = "headscale"
    paper = "Wang et al. 2024, arXiv 2404.12224"
    formula = "f_h score_ij, f_h learned for each layer and head"
    acts_on = "scores"
    past_training = "no parameter depends on the length; sharp heads stay on few keys, others spread"
    learned = "L*H"
    relative = True
    uses_positions = False
    cost = StepCost(at_64=1.12, at_512=1.48)

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.scale = nn.Parameter(torch.ones(shape.n_layers, shape.n_heads))  # (L, H)

    def learned_parameters(self) -> int:
        return self.shape.n_layers * self.shape.n_heads

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * self.scale[layer].float()[:, None, None]  # (B, H, T, S)
