"""PoSE: in training the chunks of a window have random gaps between them; in evaluation positions are 0..n-1.

A window is cut into `chunks` pieces at random places. The first one begins at position 0.
Paper: Zhu et al. 2023, arXiv 2309.10400.
Departures: max is 8 T unless set; the paper chooses it by its test lengths. A step's windows share one draw.
Chunks follow each other in the text. They are cut anywhere, so the first of two has n/2 tokens on average. In
the authors' code it has at most n/2, which is n/4 on average.
"""

import torch
from torch import Tensor

from posenc.encodings.base import Shape
from posenc.encodings.positions.drawn import DrawnPositions


class PoSE(DrawnPositions):
    """Put random gaps between the chunks of a training window."""

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
        # the first token of each chunk but the first one, (chunks - 1,)
        cuts = (torch.randperm(n - 1, generator=generator)[: self.chunks - 1] + 1).sort().values
        # how far these chunks are moved; sorted, so that positions increase
        shifts = torch.randint(self.limit - n + 1, (len(cuts),), generator=generator).sort().values
        shift_of_chunk = torch.cat((shifts.new_zeros(1), shifts))  # (chunks,)
        # `right=True`: the token at a cut is the first one of the next chunk.
        chunk_of_token = torch.bucketize(pos, cuts, right=True)  # (n,)
        return pos + shift_of_chunk[chunk_of_token]  # (n,)
