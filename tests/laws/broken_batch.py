"""Numbers that depend on more than weights, tokens and positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from broken import Broken
from broken_others import Waves
from torch import Tensor, nn

from posenc.encodings.base import Shape


class OfTheBatch(Broken):
    """Adds the mean over the texts of a batch: a loss then depends on how many are measured at once."""

    caught_by = "batch"
    says = "other texts in the batch"
    healthy = "nope"
    uses_positions = False

    def embed(self, x: Tensor, pos: Tensor, layer: int) -> Tensor:
        return x + x.mean(0, keepdim=True)


class Dropped(Waves):
    """Dropout from the process's own stream of random numbers, which no checkpoint holds."""

    caught_by = "repeat"
    says = "other logits the second time in training"
    healthy = Waves

    def rows(self, pos: Tensor) -> Tensor:
        return F.dropout(super().rows(pos), 0.1, self.training)


class StaysBehind(Waves):
    """Frequencies as a plain attribute: on a GPU they are on the CPU still."""

    caught_by = "load"
    says = "stay on the CPU: frequency"
    healthy = Waves

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        half = shape.d_model // 2
        self.frequency = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)

    def rows(self, pos: Tensor) -> Tensor:
        angle = pos.double()[:, None] * self.frequency
        return torch.cat((angle.sin(), angle.cos()), dim=-1).float()  # (T, d_model)


class OneLayerOnly(Broken):
    """Slopes for every layer, of which the last one's alone are read."""

    caught_by = "gradient"
    says = "slope[0] is zero"
    healthy = "kerple_log"
    learned = "L*H"

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.slope = nn.Parameter(torch.empty(shape.n_layers, shape.n_heads))

    def bias(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        r = (q_pos[:, None] - k_pos[None, :]).clamp_min(0)  # (T, S)
        return -self.slope[-1].exp()[:, None, None] * r.float().log1p()
