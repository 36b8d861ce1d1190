"""A sink in the softmax: every head may look at nothing.

Formula: p_ij = exp(z_ij) / (exp(s_h) + sum over k of exp(z_ik)), z the scaled and biased scores, s_h learned
for each layer and head. So weights sum to less than 1, and the rest goes to no value.
Setting: `attention.normalizer=sink`.
Source: gpt-oss (OpenAI 2025, arXiv 2508.10925), and its attention in transformers.
s starts at 0, as `off_by_one` stays; there it is drawn with deviation 0.02.
"""

import torch
from torch import Tensor, nn

from posenc.encodings.attention_options.base import Normalizer
from posenc.encodings.base import Shape, StepCost


class KeyWithoutValue(Normalizer):
    """A softmax over the keys and one more that has a score and no value."""

    cost = StepCost(at_64=1.13, at_512=1.15)

    def weights(self, s: Tensor, allowed: Tensor, layer: int) -> Tensor:
        sink = self.sink(layer)[:, None, None].to(s.dtype)  # (H, 1, 1)
        of_keys = s.masked_fill(~allowed, float("-inf"))
        scores = torch.cat((of_keys, sink.expand(*s.shape[:-1], 1)), dim=-1)  # (B, H, T, S + 1)
        return torch.softmax(scores, dim=-1)[..., :-1]


class Sink(KeyWithoutValue):
    """One more key for each head, with a learned score and no value."""

    name = "sink"
    key = "normalizer"
    choice = "sink"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.s = nn.Parameter(torch.zeros(shape.n_layers, shape.n_heads))  # (L, H)

    def learned_parameters(self) -> int:
        return self.shape.n_layers * self.shape.n_heads

    def sink(self, layer: int) -> Tensor:
        return self.s[layer].float()
