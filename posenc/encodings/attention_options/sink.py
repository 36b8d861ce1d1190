"""A sink in the softmax: a head may put little weight on all keys together.

Formula: the weights are p_ij = exp(z_ij) / (exp(s_h) + sum over allowed k of exp(z_ik)).
  z    the scaled and biased scores
  s_h  learned for each layer and head
So the weights of the keys sum to less than 1; the remainder is dropped.
Setting: `attention.normalizer=sink`.
Source: gpt-oss (OpenAI 2025, arXiv 2508.10925), and its attention in transformers.
s_h starts at 0, the value at which `off_by_one` keeps it. gpt-oss draws it with standard deviation 0.02.
"""

import torch
from torch import Tensor, nn

from posenc.encodings.attention_options.base import Normalizer
from posenc.encodings.base import Shape, StepCost


class KeyWithoutValue(Normalizer):
    """Take the softmax over the keys and one more key, the sink, which has a score and no value."""

    # Step time of rope over that with the softmax, T = 64 and 512: the mean of `sink` (1.13, 1.11) and
    # `off_by_one` (0.96, 1.22). They do the same work, so their difference is taken for noise.
    cost = StepCost(at_64=1.05, at_512=1.17)

    def weights(self, s: Tensor, allowed: Tensor, layer: int) -> Tensor:
        # Scores are float32 in a model, and float64 where a law or a check computes in that.
        sink_score = self.sink(layer)[:, None, None].to(s.dtype)  # (H, 1, 1)
        sink_scores = sink_score.expand(*s.shape[:-1], 1)  # (B, H, T, 1)
        key_scores = s.masked_fill(~allowed, float("-inf"))  # (B, H, T, S)
        # One more column and no formula of its own: the softmax subtracts the largest score, also if it is
        # the sink.
        scores = torch.cat((key_scores, sink_scores), dim=-1)  # (B, H, T, S + 1)
        return torch.softmax(scores, dim=-1)[..., :-1]  # without the weight of the sink


class Sink(KeyWithoutValue):
    """Give each head one more key, with a learned score and no value."""

    name = "sink"
    key = "normalizer"
    choice = "sink"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.s = nn.Parameter(torch.zeros(shape.n_layers, shape.n_heads))  # s_h of each layer, (L, H)

    def learned_parameters(self) -> int:
        return self.shape.n_layers * self.shape.n_heads

    def sink(self, layer: int) -> Tensor:
        return self.s[layer].float()
