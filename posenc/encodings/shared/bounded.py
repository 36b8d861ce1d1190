"""Parameters that stay in a range: a smooth map of an unbounded number, and its inverse for initial values.

Some released code clamps the parameter instead (`.data.clamp_`). At the border it then gets no gradient.
"""

import torch.nn.functional as F
from torch import Tensor

NEAREST = 1e-3  # how close to the end of its range a parameter may start


def soft_floor(raw: Tensor, floor: float) -> Tensor:
    """Return floor + softplus(raw), float32."""
    return floor + F.softplus(raw.float())


def inverse_soft_floor(value: Tensor, floor: float) -> Tensor:
    """Invert `soft_floor`; values at or below the floor become NEAREST above it."""
    # At the floor itself the inverse is -inf, from which no gradient leads back.
    excess = (value.double() - floor).clamp_min(NEAREST)
    # log(e^excess - 1) = excess + log(1 - e^-excess), written so that e^excess cannot overflow
    raw = excess + (-(-excess).expm1()).log()
    return raw.to(value.dtype)


def soft_range(raw: Tensor, low: float, high: float) -> Tensor:
    """Return low + (high - low) sigmoid(raw), float32."""
    return low + (high - low) * raw.float().sigmoid()


def inverse_soft_range(value: Tensor, low: float, high: float) -> Tensor:
    """Invert `soft_range`; values outside of the range, or at its ends, are first moved just inside."""
    share = ((value.double() - low) / (high - low)).clamp(NEAREST, 1 - NEAREST)
    return share.logit().to(value.dtype)
