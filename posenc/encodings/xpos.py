"""xPos: RoPE in which each pair's part of the score also shrinks with the distance, that of fast pairs most.

Formula: RoPE, and pair k of
  a query at i  is multiplied by z_k^(i/s)
  a key at j    is multiplied by z_k^(-j/s)
  with          z_k = (2k/D + 0.4) / 1.4 and s = `scale_base` = 512
so that pair k of the score has the factor z_k^((i-j)/s).
i and j are counted from the middle of the window. The scores are the same as if they were counted from its
beginning, but then z_k^(-j/s) alone would overflow float32 from j = 36 000 on.
Departure: windows over more than 128 s = 65 536 positions are refused (32 768 where positions are drawn),
because the factors leave float32's range there.
"""

import math

import torch
from torch import Tensor

from posenc.encodings.base import Shape, float64
from posenc.encodings.shared.rotary import Layout, Rotary

# The longest span from the first position of a window to its last, in units of scale_base. The smallest z_k
# is 0.4/1.4. Its power -64 is 6.7e34, near float32's end of 3.4e38: a position may lie 64 from the middle.
LONGEST_CONTIGUOUS = 128.0
# A score has the product of the factors of its query and its key, and it is computed before the mask hides
# the future. Where positions are drawn, a future key may be the whole span ahead of its query. With a span of
# 128 the product would be z_k^-128, which is inf, and inf - inf is nan. Half the span keeps it finite. In a
# contiguous window the future keys of a block of queries are near, so the product stays small.
LONGEST_DRAWN = 64.0


class XPos(Rotary):
    name = "xpos"
    paper = "Sun et al. 2022, arXiv 2212.10554"
    formula = "RoPE, pair k times z_k^((i-j)/512), z_k = (2k/D + 0.4)/1.4"
    past_training = "defined everywhere; with the distance the fast pairs fade first, then the score"
    learned = "0"
    keeps_lengths = False  # the factors change lengths, too

    def __init__(self, shape: Shape, *, base: float, layout: Layout, scale_base: float) -> None:
        super().__init__(shape, base=base, layout=layout, width=shape.head_dim)
        if not 0 < scale_base < math.inf:
            raise ValueError(f"scale_base={scale_base}: must be a finite number above 0")
        self.scale_base = scale_base
        if shape.train_length > LONGEST_CONTIGUOUS * scale_base:
            raise ValueError(f"context_length={shape.train_length}: {self._at_most(LONGEST_CONTIGUOUS)}")
        if shape.position_limit is not None and shape.position_limit > LONGEST_DRAWN * scale_base:
            raise ValueError(f"positions.max={shape.position_limit}: {self._at_most(LONGEST_DRAWN)}")
        # By `ends_at` an evaluation notes that such a length does not apply, instead of failing in a pass.
        last_position = int(LONGEST_CONTIGUOUS * scale_base)
        self.ends_at = last_position + 1

    def learned_parameters(self) -> int:
        return 0

    def log_factors(self, pos: Tensor, centre: int) -> Tensor:
        """Return log z_k^((pos - centre)/s): (T, D/2) float64."""
        from_centre = float64(pos - centre)[:, None]  # (T, 1)
        twice_k = torch.arange(0, self.width, 2, dtype=torch.float64, device=from_centre.device)  # (D/2,)
        z = (twice_k / self.width + 0.4) / 1.4
        return from_centre / self.scale_base * z.log()

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        centre = self._checked_centre(k_pos)  # of queries and keys alike
        k_cos, k_sin = self.angles(k_pos)  # (S, D/2)
        # In training queries and keys are the same tokens: their angles are computed once.
        q_cos, q_sin = (k_cos, k_sin) if q_pos is k_pos else self.angles(q_pos)  # (T, D/2)
        # By the logarithm in float64: as a power in float32 the factor would be off far from the centre.
        q_factors = self.log_factors(q_pos, centre).exp().float().to(q.device)  # (T, D/2)
        k_factors = (-self.log_factors(k_pos, centre)).exp().float().to(k.device)  # (S, D/2)
        rotated_q = self.rotate_width(q, q_cos * q_factors, q_sin * q_factors)
        rotated_k = self.rotate_width(k, k_cos * k_factors, k_sin * k_factors)
        return rotated_q, rotated_k

    def _checked_centre(self, pos: Tensor) -> int:
        """Return the middle of a window at positions pos (S,). Raises ValueError if its span is too long."""
        first, last = pos[[0, -1]].tolist()
        span = last - first
        is_contiguous = span < len(pos)
        longest = LONGEST_CONTIGUOUS if is_contiguous else LONGEST_DRAWN
        if span > longest * self.scale_base:
            raise ValueError(f"a window from position {first} to {last}: {self._at_most(longest)}")
        return int(first + last) // 2

    def _at_most(self, longest: float) -> str:
        """Say how many positions fit into float32, for an error."""
        return f"xpos's factors fit into float32 over {longest * self.scale_base:.0f} positions at most"
