"""Absolute encodings: a vector for each position, added to or concatenated with the residual stream.

per_layer  false: once, at the input. true: before every block, each with parameters of its own
combine    add: x_t + e_t. concat: W [x_t; e_t] with a learned W (d_model, 2 d_model) in each place,
           initialised as a linear map: normal, fan_in^-1/2, no bias
Paper of per_layer: Dehghani et al. 2018 (Universal Transformer), arXiv 1807.03819, which also adds a sinusoid
of the layer's index; that one is left out.
"""

import functools
import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding, Shape, float64

Combine = Literal["add", "concat"]
Beyond = Literal["untrained", "clamp", "truncate", "refuse"]

# Terms of `Encoding.learned`: what `concat` learns in a place, and how many places there are.
JOINED = "(2*d*d if combine == 'concat' else 0)"
PLACES = "(L if per_layer else 1)"


class Absolute(Encoding):
    """Add or concatenate `rows(pos, place)`; parameters for each place have `places` as their first size."""

    acts_on = "embed"

    def __init__(self, shape: Shape, *, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape)
        self.per_layer, self.combine = per_layer, combine
        self.places = shape.n_layers if per_layer else 1
        self.input_scale = 1.0  # factor on the token embeddings
        if combine == "concat":
            self.joined = nn.Parameter(torch.empty(self.places, shape.d_model, 2 * shape.d_model))

    def rows(self, pos: Tensor, place: int) -> Tensor:
        """Return the vectors of positions, (T,) int64 -> (T, d_model) float32; `place`: 0 or the layer."""
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
        # Autocast would round the rows to bf16 before the product, where t = 256 and 257 are equal.
        with torch.autocast(x.device.type, enabled=False):
            mapped = F.linear(rows, on_rows.to(rows.dtype))  # (T, d_model)
        return F.linear(x, on_x) + mapped.to(x.dtype)


class Tabled(Absolute):
    """A table of trained rows of `width` numbers for each place; `beyond` is explained in `learned`."""

    def __init__(
        self, shape: Shape, *, width: int, beyond: Beyond, per_layer: bool, combine: Combine
    ) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        self.beyond = beyond
        self.table = nn.Parameter(torch.empty(self.places, shape.positions, width))  # (places, T, width)

    def look_up(self, pos: Tensor, place: int) -> Tensor:
        """Return rows of increasing positions, (T,) int64 -> (T, width). Raises ValueError past the end."""
        table = self.table[place]  # (positions, width)
        last = int(pos[-1])  # on the host, before any table is indexed
        if last < len(table):
            return table[pos]
        if self.beyond == "clamp":
            return table[pos.clamp_max(len(table) - 1)]
        if self.beyond == "untrained":
            trained = int((pos < len(table)).sum())
            past = [drawn_row(self.seed, place, t, table.shape[-1]) for t in pos[trained:].tolist()]
            return torch.cat((table[pos[:trained]], (torch.stack(past) * self.shape.d_model**-0.5).to(table)))
        raise ValueError(
            f"{self.name}: rows end at {len(table)}, beyond={self.beyond} has none for position {last}"
        )


@functools.lru_cache(1 << 20)  # a row takes 20 us
def drawn_row(seed: int, place: int, position: int, width: int) -> Tensor:
    """Return a normal row past the end of a table, (width,), by its own generator whatever else is drawn."""
    generator = generator_for(seed, f"encoding.table[{position}]", *([place] if place else []))
    return torch.randn(width, generator=generator)


def check_base(base: float) -> None:
    """Raise ValueError for a base of wavelengths that is not a finite number above 1."""
    if not 1 < base < math.inf:
        raise ValueError(f"base={base}: must be a finite number above 1")


def sinusoid_frequencies(width: int, base: float, device: torch.device | None = None) -> Tensor:
    """Return base^(-2k/width) in radians a token, highest first: (ceil(width/2),) float64."""
    k = torch.arange(0, width, 2, dtype=torch.float64, device=device)  # 2k
    return base ** (-k / width)


def waves(angle: Tensor) -> Tensor:
    """Interleave sines (even columns) and cosines (odd ones) of angles, (T, n) -> (T, 2n)."""
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


def sinusoids(pos: Tensor, width: int, base: float) -> Tensor:
    """Return the sinusoids of positions, (n,) int64 -> (n, width) float32, sines on even columns.

    Angles in float64: at position 65 536 a float32 product is off by up to 0.004 radians.
    """
    exact = float64(pos)[:, None]  # (n, 1)
    angle = exact * sinusoid_frequencies(width, base, exact.device)  # (n, ceil(width/2))
    return waves(angle)[:, :width].float().to(pos.device)  # (n, width)
