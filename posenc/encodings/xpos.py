"""xPos: rotary positions whose pairs also fade with the distance, the fast pairs more.

Formula: RoPE with q_i * z_k^(i/s) and k_j * z_k^(-j/s), z_k = (2k/D + 0.4) / 1.4, s = `scale_base` = 512, so
that pair k of the score has the factor z_k^((i-j)/s). i and j are counted from the middle of the window: the
scores are the same, and z^(-j/s) alone overflows float32 from j = 36 000 on.
Departure: windows over more than 128 s = 65 536 positions are refused (32 768 where positions are drawn):
there the factors leave float32's range.
"""

import math

import torch
from torch import Tensor

from posenc.encodings.base import Shape, float64
from posenc.encodings.shared.rotary import Layout, Rotary

# Longest window in units of scale_base. (0.4/1.4)^-64 = 6.7e34 is near float32's end, so positions may lie 64
# from the middle.
CONTIGUOUS = 128.0
# With drawn positions a query is scored against keys of the far future before the mask, and inf - inf is nan.
# A block of a contiguous window has its future near.
DRAWN = 64.0


class XPos(Rotary):
    name = "xpos"
    paper = "Sun et al. 2022, arXiv 2212.10554"
    formula = "RoPE, pair k times z_k^((i-j)/512), z_k = (2k/D + 0.4)/1.4"
    past_training = "defined everywhere; with the distance the fast pairs fade first, then the score"
    learned = "0"
    turns_only = False

    def __init__(self, shape: Shape, *, base: float, layout: Layout, scale_base: float) -> None:
        super().__init__(shape, base=base, layout=layout, width=shape.head_dim)
        if not 0 < scale_base < math.inf:
            raise ValueError(f"scale_base={scale_base}: must be a finite number above 0")
        self.scale_base = scale_base
        if shape.train_length > CONTIGUOUS * scale_base:
            raise ValueError(f"context_length={shape.train_length}: {self._at_most(CONTIGUOUS)}")
        if shape.position_limit is not None and shape.position_limit > DRAWN * scale_base:
            raise ValueError(f"positions.max={shape.position_limit}: {self._at_most(DRAWN)}")
        self.ends_at = int(CONTIGUOUS * scale_base) + 1

    def learned_parameters(self) -> int:
        return 0

    def log_factors(self, pos: Tensor, centre: int) -> Tensor:
        """Return log z_k^((pos - centre)/s): (T, D/2) float64."""
        exact = float64(pos - centre)[:, None]
        z = torch.arange(0, self.width, 2, dtype=torch.float64, device=exact.device) / self.width
        return exact / self.scale_base * ((z + 0.4) / 1.4).log()

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        first, last = k_pos[[0, -1]].tolist()
        reach = CONTIGUOUS if last - first < len(k_pos) else DRAWN
        if last - first > reach * self.scale_base:
            raise ValueError(f"a window from position {first} to {last}: {self._at_most(reach)}")
        centre = (first + last) // 2  # of queries and keys alike
        k_cos, k_sin = self.angles(k_pos)  # (S, D/2)
        q_cos, q_sin = (k_cos, k_sin) if q_pos is k_pos else self.angles(q_pos)  # (T, D/2)
        up = self.log_factors(q_pos, centre).exp().float().to(q.device)  # (T, D/2)
        down = (-self.log_factors(k_pos, centre)).exp().float().to(k.device)  # (S, D/2)
        return self.turn(q, q_cos * up, q_sin * up), self.turn(k, k_cos * down, k_sin * down)

    def _at_most(self, reach: float) -> str:
        return f"xpos's factors fit into float32 over {reach * self.scale_base:.0f} positions at most"
