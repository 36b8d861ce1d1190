"""Absolute encodings with a trained row for each position, and what they do past the table's end.

The table holds `shape.positions` rows: T, or as many as `positions=randomized|offset` draw from. `beyond`:
  untrained  rows drawn from (seed, place, t) like the trained ones before training; neither saved nor decayed
  clamp      the last row for every later position
  truncate   only the last T tokens are kept (by whoever calls the model: asking for a later row is an error)
  refuse     no number past T
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Shape
from posenc.encodings.families.absolute import Absolute, Combine

Beyond = Literal["untrained", "clamp", "truncate", "refuse"]


class Tabled(Absolute):
    """A table of trained rows, `width` numbers each, for every place."""

    traps: ClassVar[tuple[str, ...]] = (
        "A table indexed past its end is an assert on a GPU that poisons the whole process: the position is "
        "compared on the host first.",
    )

    def __init__(
        self, shape: Shape, *, width: int, beyond: Beyond, per_layer: bool, combine: Combine
    ) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        self.beyond = beyond
        self.table = nn.Parameter(torch.empty(self.places, shape.positions, width))  # (places, T, width)
        # (seed, place) -> rows T, T+1, ... (width,); grows on demand, never in a state dict
        self._drawn: dict[tuple[int, int], list[Tensor]] = {}

    def looked_up(self, pos: Tensor, place: int) -> Tensor:
        """Rows of increasing positions, (T,) int64 -> (T, width). Raises ValueError for one there is not."""
        table = self.table[place]  # (positions, width)
        last = int(pos[-1])  # on the host, before any table is indexed
        if last < len(table):
            return table[pos]
        if self.beyond == "clamp":
            return table[pos.clamp_max(len(table) - 1)]
        if self.beyond == "untrained":
            return torch.cat((table, self._untrained(place, last + 1 - len(table)).to(table)))[pos]
        raise ValueError(
            f"{self.name}: rows end at {len(table)}, beyond={self.beyond} has none for position {last}"
        )

    def _untrained(self, place: int, count: int) -> Tensor:
        """The first `count` rows past the table, on the CPU: (count, width)."""
        _, end, width = self.table.shape
        rows = self._drawn.setdefault((self.seed, place), [])
        for t in range(end + len(rows), end + count):
            # a generator for each row: it does not depend on how many are asked for
            names = (f"encoding.table[{t}]", *([place] if place else []))
            rows.append(torch.randn(width, generator=generator_for(self.seed, *names)))
        return torch.stack(rows[:count]) * self.shape.d_model**-0.5
