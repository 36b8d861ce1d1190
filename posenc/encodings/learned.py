"""Learned absolute positions: a trained row for each position of the training window.

Formula: x'_t = x_t + E[t] for t < T (one table a layer where `per_layer`); past T by the policy `beyond`:
  untrained  rows drawn from (seed, t) like the trained ones before training; neither saved nor decayed
  clamp      E[T-1] for every t >= T
  truncate   only the last T tokens are kept, so that the loss equals the crop line
  refuse     no number past T
Papers: Gehring et al. 2017, arXiv 1705.03122; BERT, arXiv 1810.04805; GPT-2 (Radford et al. 2019).
Departure: rows start with the standard deviation of the token embeddings, d^-1/2 (GPT-2: 0.02 for both).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from posenc.encodings.base import Shape
from posenc.encodings.families.absolute import Absolute, Combine
from posenc.seeds import generator_for


class Learned(Absolute):
    """A table of T trained rows for each place where it is added."""

    name = "learned"
    paper = "Gehring et al. 2017, arXiv 1705.03122; GPT-2 (Radford et al. 2019)"
    formula = "x_t + E[t]"
    past_training = "no row was trained: the policy `beyond` says what is used instead"
    learned = "T*d*(L if per_layer else 1) + (2*d*d*(L if per_layer else 1) if combine == 'concat' else 0)"
    traps = (
        "A table indexed past its end is an assert on a GPU that poisons the whole process: the length is "
        "compared on the host first.",
    )

    def __init__(
        self,
        shape: Shape,
        *,
        beyond: Literal["untrained", "clamp", "truncate", "refuse"],
        per_layer: bool,
        combine: Combine,
    ) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        self.beyond = beyond
        self.table = nn.Parameter(torch.empty(self.places, shape.positions, shape.d_model))  # (places, T, d)
        # Rows T, T+1, ...; grows on demand, never in a state dict.
        self._drawn = torch.empty(self.places, 0, shape.d_model)
        self._drawn_from: int | None = None

    def rows(self, pos: Tensor, place: int) -> Tensor:
        table, trained = self.table[place], self.shape.positions
        beyond = int(pos[-1]) + 1 - trained  # positions increase; on the host, before any table is indexed
        if beyond <= 0:
            return table[pos]  # (T, d_model)
        if self.beyond == "clamp":
            return table[pos.clamp_max(trained - 1)]
        if self.beyond == "untrained":
            return torch.cat((table, self._untrained(beyond)[place].to(table)))[pos]
        raise ValueError(f"learned positions end at {trained}: beyond={self.beyond} has no row {pos[-1]}")

    def _untrained(self, count: int) -> Tensor:
        """The first `count` rows past T: a row depends on the seed, its place and t alone."""
        if self._drawn_from != self.seed:
            self._drawn, self._drawn_from = self._drawn[:, :0], self.seed
        have = self._drawn.shape[1]
        if have < count:
            rows = [
                torch.stack([self._draw(place, self.shape.positions + i) for i in range(have, count)])
                for place in range(self.places)
            ]
            self._drawn = torch.cat((self._drawn, torch.stack(rows)), dim=1)
        return self._drawn[:, :count]  # (places, count, d_model)

    def _draw(self, place: int, row: int) -> Tensor:
        generator = generator_for(self.seed, f"encoding.table[{place}][{row}]")
        return torch.randn(self.shape.d_model, generator=generator) * self.shape.d_model**-0.5
