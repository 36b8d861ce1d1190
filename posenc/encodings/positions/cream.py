"""CREAM: head, middle and tail of a window far apart in training; 0..n-1 in evaluation.

A window of n tokens is cut into three chunks, and max is the limit of the positions:
  head    begins at 0; h tokens long
  tail    ends at max - 1; h tokens long
  middle  the other m = n - 2h tokens; its last position is drawn from U(h + (m-1) a/2, a n/2 - h - 1)
  h       n/3 or, in half of the draws, 4 max/n, but at most n/3
  a       drawn from N(1 + max/n, sigma) cut to [2, 2 max/n], and rounded down
Paper: Wu, Zhao, Zheng 2024, arXiv 2406.07138, by its released code.
Departures: max is 8 T unless set; the paper chooses it by its test lengths. A step's windows share one draw,
and the three chunks are neighbours in the text. A short head is never longer than n/3. An a beyond the cuts
is drawn anew; the code moves it to the nearer cut, so that both ends come more often.
"""

import math

import torch
from torch import Tensor, nn

from posenc.encodings.base import Shape
from posenc.encodings.positions.drawn import DrawnPositions


class CREAM(DrawnPositions):
    """Head, middle and tail of a window in training, the middle mostly from the middle of the range."""

    name = "cream"
    gaps = True

    def __init__(self, shape: Shape, *, max: int | None, sigma: float) -> None:
        super().__init__(shape, max=max)
        if not 0 < sigma < math.inf:
            raise ValueError(f"positions.sigma={sigma}: must be above 0")
        self.sigma = sigma

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        pos = torch.arange(n)
        if not training:
            return pos
        factor = self.limit / n
        head = n // 3
        if torch.randint(2, (), generator=generator):
            head = min(int(4 * factor), head)
        middle = n - 2 * head
        # The order of the draws is part of every run's numbers.
        a = torch.empty(())
        nn.init.trunc_normal_(a, 1 + factor, self.sigma, 2, 2 * factor, generator=generator)
        half = math.floor(a.item()) / 2
        earliest = math.floor(head + (middle - 1) * half)
        latest = math.floor(half * n) - head - 1
        end_of_middle = torch.randint(earliest, latest + 1, (), generator=generator)
        no_skip = torch.zeros_like(end_of_middle)
        skip_of_middle = end_of_middle - (head + middle - 1)
        skips = torch.stack((no_skip, skip_of_middle, no_skip + self.limit - n))
        return pos + skips.repeat_interleave(torch.tensor([head, middle, head]))  # (n,)
