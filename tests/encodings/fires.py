"""FIRE, and its network as the paper writes it."""

from typing import Any

import torch
from formulas_bias import Network, fire_share, network, softplus, spread, started
from torch import Tensor

from posenc.encodings.fire import FIRE

WEIGHTS = ("w1", "b1", "w2", "b2")


FAR = [0, 1, 2, 15, 16, 17, 63, 64, 255, 257, 1000, 8191, 65536]


def fire(size: float | None = None, **params: Any) -> FIRE:
    """As it starts, or with the network's numbers of this size."""
    encoding = started("fire", **params)
    assert isinstance(encoding, FIRE)
    if size is not None:
        c, factor = encoding.c.detach().clone(), encoding.factor.detach().clone()
        spread(encoding, size)
        encoding.c.data, encoding.factor.data = c, factor
    return encoding


def plain(encoding: FIRE, place: int) -> Network:
    return network(*(getattr(encoding, name)[place] for name in WEIGHTS))


def formula(
    encoding: FIRE, q_pos: list[int], k_pos: list[int], place: int, raw: tuple[float, float] | None = None
) -> Tensor:
    """(H, T, S) a pair at a time, the future as distance 0; `raw` replaces the raw c and factor."""
    raw_c, raw_factor = raw or (encoding.c[place].item(), encoding.factor[place].item())
    c, threshold = 1e-6 + softplus(raw_c), encoding.start * (1e-6 + softplus(raw_factor))
    one = plain(encoding, place)
    rows = [[one(fire_share(i, min(i, j), c, threshold)) for j in k_pos] for i in q_pos]
    return torch.tensor(rows, dtype=torch.float64).permute(2, 0, 1)
