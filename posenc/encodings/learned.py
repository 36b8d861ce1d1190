"""Learned absolute positions: a trained row for each position of the training window.

Formula: x'_t = x_t + E[t] for t < T; past T by the declared policy `beyond`:
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

from posenc.encodings.base import Encoding, Shape
from posenc.seeds import generator_for


class Learned(Encoding):
    """A table of T trained rows added to the input embedding."""

    name = "learned"
    paper = "Gehring et al. 2017, arXiv 1705.03122; GPT-2 (Radford et al. 2019)"
    formula = "x_t + E[t]"
    acts_on = "embed"
    past_training = "no row was trained: the policy `beyond` says what is used instead"

    def __init__(self, shape: Shape, *, beyond: Literal["untrained", "clamp", "truncate", "refuse"]) -> None:
        super().__init__(shape)
        self.beyond = beyond
        self.table = nn.Parameter(torch.empty(shape.train_length, shape.d_model))  # (train_length, d_model)
        self._drawn = torch.empty(
            0, shape.d_model
        )  # rows T, T+1, ...; grows on demand, never in a state dict
        self._drawn_from: int | None = None

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        if layer > 0:
            return x
        trained = self.shape.train_length
        beyond = int(pos[-1]) + 1 - trained  # positions increase; on the host, before any table is indexed
        if beyond <= 0:
            rows = self.table[pos]  # (T, d_model)
        elif self.beyond == "clamp":
            rows = self.table[pos.clamp_max(trained - 1)]
        elif self.beyond == "untrained":
            rows = torch.cat((self.table, self._untrained(beyond).to(self.table)))[pos]
        else:
            raise ValueError(f"learned positions end at {trained}: beyond={self.beyond} has no row {pos[-1]}")
        return x + rows.to(x.dtype)  # (B, T, d_model)

    def _untrained(self, count: int) -> Tensor:
        """The first `count` rows past T: row t depends on the seed and t alone, so it never moves."""
        if self._drawn_from != self.seed:
            self._drawn, self._drawn_from = self._drawn[:0], self.seed
        have = len(self._drawn)
        if have < count:
            rows = [self._draw(self.shape.train_length + i) for i in range(have, count)]
            self._drawn = torch.cat((self._drawn, torch.stack(rows)))
        return self._drawn[:count]  # (count, d_model)

    def _draw(self, row: int) -> Tensor:
        generator = generator_for(self.seed, f"encoding.table[{row}]")
        return torch.randn(self.shape.d_model, generator=generator) * self.shape.d_model**-0.5
