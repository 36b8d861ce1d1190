"""Learned biases by distance: positive parameters, KERPLE's kernels, a ReLU network of one input."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape

NEAREST = 1e-3  # how close to the end of its range a parameter may start
KERPLE_FLOOR = 0.01  # lower bound of KERPLE's parameters, as in the released code


def above(raw: Tensor, floor: float) -> Tensor:
    """Return floor + softplus(raw), float32. A clamp through `.data` would stop the gradient instead."""
    return floor + F.softplus(raw.float())


def raw_above(value: Tensor, floor: float) -> Tensor:
    """Invert `above`; values at or below the floor start just above it."""
    rest = (value.double() - floor).clamp_min(NEAREST)
    return (rest + (-(-rest).expm1()).log()).to(value.dtype)  # log(e^rest - 1), never inf


def between(raw: Tensor, low: float, high: float) -> Tensor:
    """Return low + (high - low) sigmoid(raw), float32."""
    return low + (high - low) * raw.float().sigmoid()


def raw_between(value: Tensor, low: float, high: float) -> Tensor:
    """Invert `between`; values outside start just inside."""
    share = ((value.double() - low) / (high - low)).clamp(NEAREST, 1 - NEAREST)
    return share.logit().to(value.dtype)


class Kerple(Encoding):
    """- a k(r; b), a and b learned for each head, shared by the layers, kept above 0.01 and not decayed."""

    paper = "Chi, Fan, Ramadge, Rudnicky 2022 (KERPLE), arXiv 2205.09921"
    acts_on = "bias"
    learned = "2*H"
    relative = True
    penalty = True
    starts_below: ClassVar[dict[str, float]]  # a, b: upper ends of their uniform initial distributions

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.a = nn.Parameter(torch.empty(shape.n_heads))  # (H,), before its reparametrisation
        self.b = nn.Parameter(torch.empty(shape.n_heads))  # (H,)

    def raw(self, name: str, value: Tensor) -> Tensor:
        """Return the parameter `name` before its reparametrisation to this value."""
        return raw_above(value, KERPLE_FLOOR)

    def initialize(self, name: str, parameter: Tensor, generator: torch.Generator) -> None:
        value = torch.rand(parameter.shape, generator=generator) * self.starts_below[name]
        parameter.copy_(self.raw(name, value))


def relu_network(u: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return w2 relu(w1 u + b1) + b2 for u (...) with w1, b1 (K,), w2 (H, K), b2 (H,) -> (H, ...).

    With one input it is a piecewise linear function of K + 1 pieces, so a value costs a look-up, and n^2
    inputs never become n^2 x K numbers. The gradient is that of the network.
    """
    slopes, offsets, borders = _pieces(w1, b1, w2, b2)
    piece = torch.searchsorted(borders, u.detach().contiguous()).flatten()  # (n,), borders below u
    slope, offset = slopes.index_select(1, piece), offsets.index_select(1, piece)  # (H, n)
    return torch.addcmul(offset, slope, u.flatten()).unflatten(1, u.shape)


def _pieces(w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return slope and offset of every piece, (H, K + 1) each, ascending, and the borders (K,) between."""
    with torch.no_grad():
        border, order = torch.where(w1 == 0, torch.inf, -b1 / w1).sort()  # a unit without slope never turns
        sign = w1.sign()
        at_first = (w1 < 0) | ((w1 == 0) & (b1 > 0))  # units that are on below every border
    # Passing its border upwards, a rising unit goes on and a falling one off.
    turned = torch.stack((sign * w1, sign * b1))[:, None, order] * w2[:, order]  # (2, H, K)
    first = torch.stack((w1, b1))[:, None, :] * w2 * at_first  # (2, H, K)
    pieces = torch.cat((first.sum(-1, keepdim=True), turned), dim=-1).cumsum(-1)  # (2, H, K + 1)
    return pieces[0], pieces[1] + b2[:, None], border
