"""Offset positions: in training n neighbours below max, from a random start on; in evaluation 0..n-1.

Papers: CAPE's global shift, Likhomanenko et al. 2021, arXiv 2106.03143; SHAPE, Kiyono et al. 2021,
arXiv 2109.05644.
Departure: max is 8 T unless set; the papers choose it by their test lengths. A step's windows share one draw.
"""

import torch
from torch import Tensor

from posenc.encodings.positions.drawn import DrawnPositions


class Offset(DrawnPositions):
    """Begin the positions of a training window at a random start."""

    name = "offset"

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        if not training:
            return torch.arange(n)
        # The last start is the one whose window ends at the limit.
        start = torch.randint(self.limit - n + 1, (), generator=generator)
        return start + torch.arange(n)  # (n,)
