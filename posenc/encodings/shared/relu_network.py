"""A ReLU network of one input, evaluated for every pair of tokens without a hidden number for each pair."""

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_HIDDEN = 1 << 26  # hidden numbers of a bias that a GPU may hold: 256 MiB for each layer of the model


def relu_network(u: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return w2 relu(w1 u + b1) + b2 for u (...) with w1, b1 (K,), w2 (H, K), b2 (H,) -> (H, ...).

    With one input it is a piecewise linear function of K + 1 pieces, so a value costs a look-up, and n^2
    inputs never become n^2 x K numbers. The gradient is that of the network. On a GPU the gradient of a
    look-up is made of atomic additions to K + 1 addresses, so hidden numbers are made there if they fit.
    """
    if u.is_cuda and u.numel() * len(w1) <= MAX_HIDDEN:
        return _plain(u, w1, b1, w2, b2)
    slopes, offsets, borders = _pieces(w1, b1, w2, b2)
    piece = torch.searchsorted(borders, u.detach().contiguous()).flatten()  # (n,), borders below u
    slope = slopes.index_select(1, piece)  # (H, n)
    offset = offsets.index_select(1, piece)  # (H, n)
    return torch.addcmul(offset, slope, u.flatten()).unflatten(1, u.shape)


def _plain(u: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return the same by the formula, through (..., K) hidden numbers."""
    with torch.autocast(u.device.type, enabled=False):  # a bias is added to scores in float32
        hidden = F.relu(u[..., None] * w1 + b1)  # (..., K)
        return F.linear(hidden, w2, b2).movedim(-1, 0)  # (H, ...)


def _pieces(w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return slope and offset of every piece, (H, K + 1) each, ascending, and the borders (K,) between."""
    with torch.no_grad():
        # A unit whose slope is zero never turns on or off.
        borders, order = torch.where(w1 == 0, torch.inf, -b1 / w1).sort()
        sign = w1.sign()
        is_on_at_first = (w1 < 0) | ((w1 == 0) & (b1 > 0))  # below every border
    # Passing its border upwards, a rising unit goes on and a falling one off.
    switched = torch.stack((sign * w1, sign * b1))[:, None, order] * w2[:, order]  # (2, H, K)
    at_first = torch.stack((w1, b1))[:, None, :] * w2 * is_on_at_first  # (2, H, K)
    pieces = torch.cat((at_first.sum(-1, keepdim=True), switched), dim=-1).cumsum(-1)  # (2, H, K + 1)
    return pieces[0], pieces[1] + b2[:, None], borders
