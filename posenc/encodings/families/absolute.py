"""The family of absolute encodings: a vector for each position, met with the residual stream.

  per_layer  false: once, at the input. true: before every block (Dehghani et al. 2018, arXiv 1807.03819)
  combine    add: x_t + e_t. concat: W [x_t; e_t] with a learned W (d_model, 2 d_model), one for each place
A subclass gives `rows`; tables of its own with one set for each place have `places` as their first size.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape

Combine = Literal["add", "concat"]


class Absolute(Encoding):
    """Adds or concatenates `rows(pos, place)` at the input or before every block."""

    acts_on = "embed"

    def __init__(self, shape: Shape, *, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape)
        self.per_layer = per_layer
        self.combine = combine
        self.places = shape.n_layers if per_layer else 1
        self.input_scale = 1.0  # factor on the token embeddings
        if combine == "concat":
            width = shape.d_model
            self.joined = nn.Parameter(torch.empty(self.places, width, 2 * width))  # (places, d, 2d)

    def rows(self, pos: Tensor, place: int) -> Tensor:
        """The positions' vectors, (T,) int64 -> (T, d_model) float32; `place` is 0, or the layer's index."""
        raise NotImplementedError

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name == "joined":
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5, generator=generator)
        else:
            super().initialize(name, parameter, generator)

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        if layer == 0 and self.input_scale != 1:
            x = x * self.input_scale
        if layer > 0 and not self.per_layer:
            return x
        rows = self.rows(pos, layer).to(x.dtype)  # (T, d_model)
        if self.combine == "add":
            return x + rows  # (B, T, d_model)
        on_x, on_rows = self.joined[layer].chunk(2, dim=-1)
        return F.linear(x, on_x) + F.linear(rows, on_rows)
