"""A ReLU network with one input, evaluated for every pair of tokens without storing its hidden numbers."""

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_HIDDEN = 1 << 26  # hidden numbers of a bias that a GPU may hold: 256 MiB for each layer of the model


def relu_network(u: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return w2 relu(w1 u + b1) + b2 for u (...) with w1, b1 (K,), w2 (H, K), b2 (H,) -> (H, ...).

    Such a network is a piecewise linear function of u with K + 1 pieces. So each u looks up the slope and the
    offset of its piece, and its K hidden numbers are never made. The gradients are those of the network.

    On a GPU the gradient of a look-up is a sum by atomic additions to K + 1 addresses, which is slow. There
    the plain formula is used as long as its hidden numbers fit into memory.
    """
    if u.is_cuda and u.numel() * len(w1) <= MAX_HIDDEN:
        return _plain(u, w1, b1, w2, b2)
    slopes, offsets, borders = _pieces(w1, b1, w2, b2)
    # the number of borders below each u, (n,)
    piece = torch.searchsorted(borders, u.detach().contiguous()).flatten()
    slope = slopes.index_select(1, piece)  # (H, n)
    offset = offsets.index_select(1, piece)  # (H, n)
    return torch.addcmul(offset, slope, u.flatten()).unflatten(1, u.shape)


def _plain(u: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Compute the network by its formula, with hidden numbers (..., K)."""
    with torch.autocast(u.device.type, enabled=False):  # a bias is added to scores in float32
        hidden = F.relu(u[..., None] * w1 + b1)  # (..., K)
        return F.linear(hidden, w2, b2).movedim(-1, 0)  # (H, ...)


def _pieces(w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the slope and the offset of every piece, (H, K + 1) each, and the borders between them, (K,).

    Hidden unit k is on where w1_k u + b1_k > 0. While it is on, it adds w2_hk w1_k to the slope of head h and
    w2_hk b1_k to the offset. Pieces and borders are in the order of u.
    """
    # Borders need no gradient: the network is continuous, so at a border both pieces have the same value.
    with torch.no_grad():
        # Unit k turns on or off at u = -b1_k / w1_k. One whose w1 is zero never does.
        borders, order = torch.where(w1 == 0, torch.inf, -b1 / w1).sort()
        is_on_at_first = (w1 < 0) | ((w1 == 0) & (b1 > 0))  # below every border
        sign = w1.sign()  # 1 for a unit that turns on at its border, -1 for one that turns off
    first_piece = torch.stack((w1, b1))[:, None, :] * w2 * is_on_at_first  # (2, H, K)
    # A unit that turns on at its border adds its part there, and one that turns off takes it away.
    changes_at_borders = torch.stack((sign * w1, sign * b1))[:, None, order] * w2[:, order]  # (2, H, K)
    changes = torch.cat((first_piece.sum(-1, keepdim=True), changes_at_borders), dim=-1)  # (2, H, K + 1)
    pieces = changes.cumsum(-1)  # slopes and offsets, (2, H, K + 1)
    return pieces[0], pieces[1] + b2[:, None], borders
