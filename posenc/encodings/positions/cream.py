"""CREAM: in training the head, middle and tail of a window lie far apart; in evaluation positions are 0..n-1.

A window of n tokens is cut into three chunks of neighbouring positions below the limit max:
  head    h tokens; the first has position 0
  middle  the other m = n - 2h tokens; the position of its last one is drawn
  tail    h tokens; the last has position max - 1
What is drawn:
  h                           n/3, or in half of the draws 4 max/n, but at most n/3
  a                           from N(1 + max/n, sigma), cut to [2, 2 max/n] and rounded down
  the middle's last position  uniform from h + (m-1) a/2 to a n/2 - h - 1
Paper: Wu, Zhao, Zheng 2024, arXiv 2406.07138, by its released code.
Departures: max is 8 T unless set; the paper chooses it by its test lengths. A step's windows share one draw.
The three chunks follow each other in the text. A short head is never longer than n/3. An a outside of the
range is drawn again; the code moves it to the nearer end, so that both ends come more often.
"""

import math

import torch
from torch import Tensor, nn

from posenc.encodings.base import Shape
from posenc.encodings.positions.drawn import DrawnPositions


class CREAM(DrawnPositions):
    """Move the middle of a training window to a random place, and its tail to the end of the range."""

    name = "cream"
    gaps = True

    def __init__(self, shape: Shape, *, max: int | None, sigma: float) -> None:
        super().__init__(shape, max=max)
        if not 0 < sigma < math.inf:
            raise ValueError(f"positions.sigma={sigma}: must be above 0")
        self.sigma = sigma

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        # An evaluation has the positions of the text itself, as in the paper.
        pos = torch.arange(n)
        if not training:
            return pos
        factor = self.limit / n
        # The order of the draws is part of every run's numbers.
        head = n // 3
        if torch.randint(2, (), generator=generator):
            head = min(int(4 * factor), head)
        middle = n - 2 * head
        # torch's truncated normal fills a tensor, and there is no function that returns a number.
        a = torch.empty(())
        nn.init.trunc_normal_(a, 1 + factor, self.sigma, 2, 2 * factor, generator=generator)
        half_a = math.floor(a.item()) / 2
        earliest = math.floor(head + (middle - 1) * half_a)
        latest = math.floor(half_a * n) - head - 1
        last_of_middle = int(torch.randint(earliest, latest + 1, (), generator=generator))
        # how far each chunk is moved from its place in 0..n-1
        shift_of_middle = last_of_middle - (head + middle - 1)
        shift_of_tail = self.limit - n
        shifts = torch.tensor([0, shift_of_middle, shift_of_tail])
        return pos + shifts.repeat_interleave(torch.tensor([head, middle, head]))  # (n,)
