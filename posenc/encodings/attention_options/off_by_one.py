"""Softmax off by one: a head whose scores are all low puts little weight on any key.

Formula: the weights are p_ij = exp(z_ij) / (1 + sum over allowed k of exp(z_ik)).
  z  the scaled and biased scores
This is `sink` with the fixed score 0.
Setting: `attention.normalizer=off_by_one`.
Source: Miller 2023, "Attention is off by one" (a blog post).
"""

import torch
from torch import Tensor

from posenc.encodings.attention_options.sink import KeyWithoutValue
from posenc.encodings.base import Shape


class OffByOne(KeyWithoutValue):
    """Give each head one more key, with the score 0 and no value."""

    name = "off_by_one"
    key = "normalizer"
    choice = "off_by_one"

    zeros: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        # A tensor and not a number, since a fused kernel reads the score of each head on the model's device.
        self.register_buffer("zeros", torch.zeros(shape.n_heads), persistent=False)  # (H,)

    def learned_parameters(self) -> int:
        return 0

    def sink(self, layer: int) -> Tensor:
        return self.zeros.float()  # a model in bf16 has a bf16 buffer
