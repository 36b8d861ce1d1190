"""Log-n scaling: the scores are multiplied by the logarithm of the number of keys.

Formula: softmax over j of f_i z_ij.
  z    the scaled and biased scores
  f_i  log(n_i) / log(T)
  n_i  the number of keys visible to query i; not the length of the window, with which a longer text would
       change the scores of its beginning
Setting: `attention.scale=logn`.
Paper: Chiang, Cholak 2022, arXiv 2202.12172.
Departure: the constant 1/log(T), so that training starts near ordinary attention.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from posenc.encodings.attention_options.base import NONE, CountingOption
from posenc.encodings.base import Encoding, Shape


class LogN(CountingOption):
    """Multiply scores by log(visible keys) / log(T)."""

    name = "logn"
    key = "scale"
    choice = "logn"
    off = NONE
    acts_on = "scores"
    uses_positions = False

    def __init__(self, shape: Shape, *, counted: Sequence[Encoding]) -> None:
        super().__init__(shape, counted=counted)
        # log 1 is 0, by which the factor would be divided.
        if shape.train_length < 2:
            raise ValueError(f"context_length={shape.train_length}: log(T) must be above zero")

    def log_visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        """Return log(n_i) of each query: (H or 1, T) float32."""
        return self.visible_keys(q_pos, k_pos, layer).log()

    def factor(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        """Return f_i of each query: (H or 1, T) float32."""
        return self.log_visible(q_pos, k_pos, layer) / math.log(self.shape.train_length)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * self.factor(q_pos, k_pos, layer)[..., None]  # (B, H, T, S)
