"""Absolute encodings: a vector for each position, added to or concatenated with the residual stream."""

import copy
import functools
from typing import ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding, Shape, float64

Combine = Literal["add", "concat"]
Beyond = Literal["untrained", "clamp", "truncate", "refuse"]

# For the formulas in `Encoding.learned`: how many numbers `concat` learns in a place, and how many places.
JOINED = "(2*d*d if combine == 'concat' else 0)"
PLACES = "(L if per_layer else 1)"


class Absolute(Encoding):
    """Add a vector for each position, or concatenate it. A subclass computes the vectors in `rows`.

    Positions enter in one place, the input, or in several, one before every block. Each place has parameters
    of its own: the first dimension of every parameter is the place.

    per_layer  false: one place; true: a place for each layer
    combine    add: x_t + e_t
               concat: W [x_t; e_t] with a learned W (d_model, 2 d_model) in each place, initialised as a
               linear map: normal, fan_in^-1/2, no bias

    Paper of per_layer: Dehghani et al. 2018 (Universal Transformer), arXiv 1807.03819. It also adds a
    sinusoid of the layer's index, which is left out here.
    """

    acts_on = "embed"

    def __init__(self, shape: Shape, *, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape)
        self.per_layer = per_layer
        self.combine = combine
        self.places = shape.n_layers if per_layer else 1
        self.input_scale = 1.0  # factor on the token embeddings
        self.has_rows = True  # False in the copy that `without_rows` returns
        if combine == "concat":
            self.joined = nn.Parameter(torch.empty(self.places, shape.d_model, 2 * shape.d_model))  # W

    def rows(self, pos: Tensor, place: int) -> Tensor:
        """Return vectors of positions, (T,) int64 -> (T, d_model) float32. The place is 0 or the layer."""
        raise NotImplementedError

    def learned_in_a_place(self) -> int:
        """Return how many numbers `rows` learns in one place."""
        return 0

    def learned_parameters(self) -> int:
        joined = 2 * self.shape.d_model**2 if self.combine == "concat" else 0
        return self.places * (self.learned_in_a_place() + joined)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        if name == "joined":
            nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5, generator=generator)
        else:
            super().initialize(name, parameter, generator)

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        # Only at the input: with `per_layer` the stream would grow by this factor in every layer.
        if layer == 0 and self.input_scale != 1:
            x = x * self.input_scale
        is_place = layer == 0 or self.per_layer
        if not is_place:
            return x
        rows = self.rows(pos, layer) if self.has_rows else self._no_rows(pos)  # (T, d_model)
        if self.combine == "add":
            return x + rows.to(x.dtype)  # (B, T, d_model)
        # Two products and no concatenation: rows are the same for all texts of a batch, so theirs is made
        # once.
        map_of_x, map_of_rows = self.joined[layer].chunk(2, dim=-1)  # (d, d) each
        # Autocast would round the rows to bf16 before the product, where t = 256 and 257 are equal.
        with torch.autocast(x.device.type, enabled=False):
            mapped = F.linear(rows, map_of_rows.to(rows.dtype))  # (T, d_model)
        return F.linear(x, map_of_x) + mapped.to(x.dtype)

    def without_rows(self) -> Self:
        """Return a copy that shares the parameters and has a zero vector for every position."""
        # A shallow copy shares the parameters, which a deep one would train apart from the model's.
        emptied = copy.copy(self)
        emptied.has_rows = False
        # Zero vectors have no end, so no policy is needed past T.
        emptied.beyond = None
        emptied.ends_at = None
        return emptied

    def _no_rows(self, pos: Tensor) -> Tensor:
        return torch.zeros(len(pos), self.shape.d_model, device=pos.device)


class Tabled(Absolute):
    """Look rows of `width` numbers up in trained tables, one for each place; learned.py explains `beyond`."""

    is_whole: ClassVar[bool] = False  # True: a row of the table is the whole vector of a position

    def __init__(
        self, shape: Shape, *, width: int, beyond: Beyond, per_layer: bool, combine: Combine
    ) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        self.beyond = beyond
        self.stretch = 1.0  # positions are divided by it
        self.table = nn.Parameter(torch.empty(self.places, shape.positions, width))  # (places, T, width)

    def stretched(self, s: float) -> Self:
        """Return a copy that shares the parameters and reads the table at pos / s, between its rows."""
        changed = copy.copy(self)
        changed.stretch = s
        changed.beyond = None
        changed.ends_at = None
        return changed

    def look_up(self, pos: Tensor, place: int) -> Tensor:
        """Return rows of increasing positions, (T,) int64 -> (T, width). Raises ValueError past the end."""
        table = self.table[place]  # (positions, width)
        if self.stretch != 1:
            # float64, since a far position divided in float32 would lose digits of its fraction.
            return _between_rows(table, float64(pos) / self.stretch)
        end = len(table)
        # Checked before the table is indexed: on a GPU an index past the end would abort the process.
        last = int(pos[-1])
        if last < end:
            return table[pos]
        if self.beyond == "clamp":
            return table[pos.clamp_max(end - 1)]
        if self.beyond != "untrained":
            problem = f"rows end at {end}, beyond={self.beyond} has none for position {last}"
            raise ValueError(f"{self.name}: {problem}")
        is_trained = pos < end
        width = table.shape[-1]
        drawn = [drawn_row(self.seed, place, position, width) for position in pos[~is_trained].tolist()]
        # The deviation that the trained rows started with.
        untrained_rows = torch.stack(drawn) * self.shape.d_model**-0.5
        return torch.cat((table[pos[is_trained]], untrained_rows.to(table)))


def _between_rows(table: Tensor, pos: Tensor) -> Tensor:
    """Return rows of a table (n, width) at positions (T,) float64, interpolated between whole positions.

    Past the end of the table every row is the last one.
    """
    last = len(table) - 1
    pos = pos.clamp_max(last)
    row = pos.long()
    share = (pos - row).to(table)[:, None]
    row = row.to(table.device)
    next_row = (row + 1).clamp_max(last)
    return torch.lerp(table[row], table[next_row], share)


@functools.lru_cache(1 << 20)  # a row takes 20 us
def drawn_row(seed: int, place: int, position: int, width: int) -> Tensor:
    """Draw the row of a position past the end of a table: (width,) standard normal numbers.

    Each row has a generator of its own, so that it is the same whatever other rows are drawn.
    """
    names: list[object] = [f"encoding.table[{position}]"]
    if place:
        names.append(place)
    return torch.randn(width, generator=generator_for(seed, *names))
