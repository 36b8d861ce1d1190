"""Learned numbers that stay in a range: slopes, strengths and exponents, by a reparametrisation.

A clamp through `.data` would stop the gradient where it bites; these never do.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

NEAREST = 1e-3  # how near to the end of its range a value may start


def above(raw: Tensor, floor: float) -> Tensor:
    """floor + softplus(raw), float32."""
    return floor + F.softplus(raw.float())


def raw_above(value: Tensor, floor: float) -> Tensor:
    """The raw number of a value; values at or below the floor start just above it."""
    rest = (value.double() - floor).clamp_min(NEAREST)
    return (rest + (-(-rest).expm1()).log()).to(value.dtype)  # log(e^rest - 1), never inf


def between(raw: Tensor, low: float, high: float) -> Tensor:
    """low + (high - low) sigmoid(raw), float32."""
    return low + (high - low) * raw.float().sigmoid()


def raw_between(value: Tensor, low: float, high: float) -> Tensor:
    """The raw number of a value; values outside start just inside."""
    share = ((value.double() - low) / (high - low)).clamp(NEAREST, 1 - NEAREST)
    return share.logit().to(value.dtype)
