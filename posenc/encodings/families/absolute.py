"""The family of absolute encodings: a vector for each position, met with the residual stream.

  per_layer  false: once, at the input. true: before every block, each with parameters of its own
  combine    add: x_t + e_t. concat: W [x_t; e_t] with a learned W (d_model, 2 d_model) in each place, which
             starts as any linear map does: normal, fan_in^-1/2, no bias
A subclass gives `rows`; parameters of its own with one set for each place have `places` as their first size.
Paper of per_layer: Dehghani et al. 2018 (Universal Transformer), arXiv 1807.03819, which also adds a sinusoid
of the layer's number; here a block has no number of its own.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape, float64

Combine = Literal["add", "concat"]

# Terms of `Encoding.learned`: what `concat` learns in a place, and how many places there are.
JOINED = "(2*d*d if combine == 'concat' else 0)"
PLACES = "(L if per_layer else 1)"


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
        rows = self.rows(pos, layer)  # (T, d_model)
        if self.combine == "add":
            return x + rows.to(x.dtype)  # (B, T, d_model)
        on_x, on_rows = self.joined[layer].chunk(2, dim=-1)  # (d, d) each
        # Autocast would round the rows to bf16 before the product, where t = 256 and 257 are one number.
        with torch.autocast(x.device.type, enabled=False):
            mapped = F.linear(rows, on_rows.to(rows.dtype))  # (T, d_model)
        return F.linear(x, on_x) + mapped.to(x.dtype)


def check_base(base: float) -> None:
    """Raises ValueError for a base of wavelengths that is not a finite number above 1."""
    if not 1 < base < math.inf:
        raise ValueError(f"base={base}: must be a finite number above 1")


def sinusoid_frequencies(width: int, base: float, device: torch.device | None = None) -> Tensor:
    """base^(-2k/width) in radians a token, highest first: (ceil(width/2),) float64."""
    k = torch.arange(0, width, 2, dtype=torch.float64, device=device)  # 2k
    return base ** (-k / width)


def waves(angle: Tensor) -> Tensor:
    """Angles (T, n) -> sines on even columns, cosines on odd ones: (T, 2n)."""
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


def sinusoids(pos: Tensor, width: int, base: float) -> Tensor:
    """PE of the positions pos (n,) int64 -> (n, width) float32, sines on even columns, cosines on odd ones.

    Angles in float64: at position 65 536 a float32 product is off by up to 0.004 radians.
    """
    exact = float64(pos)[:, None]  # (n, 1)
    angle = exact * sinusoid_frequencies(width, base, exact.device)  # (n, ceil(width/2))
    return waves(angle)[:, :width].float().to(pos.device)  # (n, width)
