"""PoSE: chunks of a window, each further on by a random gap, the first at 0; 0..n-1 in evaluation.

A window is cut into `chunks` pieces at random places.
Paper: Zhu et al. 2023, arXiv 2309.10400.
Departures: max is 8 T unless set; the paper chooses it by its test lengths. A step's windows share one draw,
and chunks are neighbours in the text. The cuts may be anywhere. In the authors' code the first of two chunks
has at most half of the window, so n/4 tokens on average, where ours has n/2.
"""

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.positions.drawn import DrawnPositions


class PoSE(DrawnPositions):
    """Chunks of a window with random gaps between them in training."""

    name = "pose"
    gaps = True

    def __init__(self, shape: Shape, *, max: int | None, chunks: int) -> None:
        super().__init__(shape, max=max)
        if not 1 <= chunks <= shape.train_length:
            allowed = f"from 1 to context_length={shape.train_length}"
            raise ValueError(f"positions.chunks={chunks}: must be {allowed}")
        self.chunks = chunks

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        pos = torch.arange(n)
        if not training:
            return pos
        cuts = (torch.randperm(n - 1, generator=generator)[: self.chunks - 1] + 1).sort().values
        skips = torch.randint(self.limit - n + 1, (len(cuts),), generator=generator).sort().values
        chunk_of_token = torch.bucketize(pos, cuts, right=True)  # (n,)
        skip_of_chunk = torch.cat((skips.new_zeros(1), skips))
        return pos + skip_of_chunk[chunk_of_token]  # (n,)
