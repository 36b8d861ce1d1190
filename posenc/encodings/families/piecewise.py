"""A network with one input and one layer of ReLUs as what it is: a piecewise linear function.

The number of pieces is the number of hidden units and one, so a value costs a look-up, and n^2 inputs never
become n^2 x hidden numbers. The gradient is that of the network, for its weights and for the input.
"""

from __future__ import annotations

import torch
from torch import Tensor


def relu_network(u: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """w2 relu(w1 u + b1) + b2 for u (...) with w1, b1 (K,), w2 (H, K), b2 (H,) -> (H, ...)."""
    slopes, offsets, borders = _pieces(w1, b1, w2, b2)
    piece = torch.searchsorted(borders, u.detach().contiguous()).flatten()  # (n,), borders below u
    slope, offset = slopes.index_select(1, piece), offsets.index_select(1, piece)  # (H, n)
    return torch.addcmul(offset, slope, u.flatten()).unflatten(1, u.shape)


def _pieces(w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Slope and offset of every piece, (H, K + 1) each, from the lowest on, and the borders (K,) between."""
    with torch.no_grad():
        border, order = torch.where(w1 == 0, torch.inf, -b1 / w1).sort()  # a unit without slope never turns
        sign = w1.sign()
        at_first = (w1 < 0) | ((w1 == 0) & (b1 > 0))  # units that are on below every border
    # Passing its border upwards, a rising unit goes on and a falling one off.
    turned = torch.stack((sign * w1, sign * b1))[:, None, order] * w2[:, order]  # (2, H, K)
    first = torch.stack((w1, b1))[:, None, :] * w2 * at_first  # (2, H, K)
    pieces = torch.cat((first.sum(-1, keepdim=True), turned), dim=-1).cumsum(-1)  # (2, H, K + 1)
    return pieces[0], pieces[1] + b2[:, None], border
