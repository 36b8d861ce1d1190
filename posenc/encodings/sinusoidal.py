"""Sinusoidal absolute positions.

Formula: x'_t = sqrt(d) x_t + PE_t, PE_{t,2k} = sin(t / base^(2k/d)), PE_{t,2k+1} = cos(t / base^(2k/d)),
with base = 10000 and token embeddings that start with standard deviation d^-1/2.
Paper: Vaswani et al. 2017, arXiv 1706.03762.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posenc.encodings.base import Shape, float64
from posenc.encodings.families.absolute import Absolute, Combine


def sinusoids(pos: Tensor, width: int, base: float) -> Tensor:
    """PE of the positions pos (n,) int64 -> (n, width) float32, sines on even columns, cosines on odd ones.

    Angles in float64: at position 65 536 a float32 product is off by up to 0.004 radians.
    """
    exact = float64(pos)[:, None]  # (n, 1)
    k = torch.arange(0, width, 2, dtype=torch.float64, device=exact.device)  # (width/2,) = 2k
    angle = exact * base ** (-k / width)  # (n, width/2)
    table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)  # (n, width or width+1)
    return table[:, :width].float().to(pos.device)  # (n, width)


class Sinusoidal(Absolute):
    """Fixed sines and cosines of the absolute position."""

    name = "sinusoidal"
    paper = "Vaswani et al. 2017, arXiv 1706.03762"
    formula = "x_t sqrt(d) + PE_t, PE_{t,2k} = sin(t/base^(2k/d)), PE_{t,2k+1} = cos(same)"
    past_training = "defined everywhere, but the sums of phases beyond T were never seen in training"
    learned = "2*d*d*(L if per_layer else 1) if combine == 'concat' else 0"
    traps = (
        "At position 0 the row is [0, 1, 0, 1, ...]; a tutorial prints 0.84, 0.54, which is position 1.",
        "Wavelengths run from 2 pi to 2 pi base^((d-2)/d), not to 2 pi base.",
    )

    def __init__(self, shape: Shape, *, base: float, per_layer: bool, combine: Combine) -> None:
        super().__init__(shape, per_layer=per_layer, combine=combine)
        if not 1 < base < math.inf:
            raise ValueError(f"base={base}: must be a finite number above 1")
        self.base = base
        self.input_scale = shape.d_model**0.5  # token embeddings start with d^-1/2

    def rows(self, pos: Tensor, place: int) -> Tensor:
        return sinusoids(pos, self.shape.d_model, self.base)
