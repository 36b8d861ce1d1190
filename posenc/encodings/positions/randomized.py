"""Randomized positions: a sorted random subset of [0, max), in training and, as in the paper, in evaluation.

An evaluation makes 16 draws for each length, from the seed of the run. Its windows use them in turn.
Setting:
  dense  true: an evaluation has the positions 0..n-1 instead
Paper: Ruoss et al. 2023, arXiv 2305.16843.
Departure: max is 16 T unless set; the paper chooses it by its test lengths. A step's windows share one draw.
"""

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.positions.drawn import DrawnPositions


class Randomized(DrawnPositions):
    """Draw a sorted random subset of [0, max)."""

    name = "randomized"
    times = 16
    gaps = True

    def __init__(self, shape: Shape, *, max: int | None, dense: bool) -> None:
        super().__init__(shape, max=max)
        self.dense = dense
        self.prefix_stable = dense  # else a longer window draws other positions

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        if self.dense and not training:
            return torch.arange(n)
        if n > self.limit:
            raise ValueError(f"{n} positions cannot be drawn below positions.max={self.limit}")
        # A permutation, since draws one by one would repeat positions.
        return torch.randperm(self.limit, generator=generator)[:n].sort().values  # (n,)
