"""Where positions come from: `positions=contiguous|randomized|offset`.

contiguous  0..n-1, always.
randomized  a sorted random subset of [0, max), in training and, as in the paper, in evaluation: 16 draws
            from the seed for each length, which its windows take in turn; `dense` evaluates at 0..n-1
            instead. Ruoss et al. 2023, arXiv 2305.16843.
offset      0..n-1 plus a random start below max - n in training; 0..n-1 in evaluation. The global shift of
            CAPE, Likhomanenko et al. 2021, arXiv 2106.03143; SHAPE, Kiyono et al. 2021, arXiv 2109.05644.
Departure: max is 16 T (randomized) or 8 T (offset) unless set; the papers' go with their lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.signature import check_arguments
from posenc.encodings.base import Encoding, Shape

LARGEST = 2**24  # positions to draw from: each draw makes them all, 134 MB of these


class Drawn(Encoding):
    """Positions below a limit; the family of those that draw them."""

    room = 1  # the limit is this many times T unless it is set
    gaps = False  # whether neighbours may lie more than 1 apart

    def __init__(self, shape: Shape, *, max: int | None) -> None:
        super().__init__(shape)
        self.limit = self.limit_for(max, shape.train_length)
        if max is None:
            self.derived["max"] = self.limit
        if self.limit < shape.train_length:
            raise ValueError(f"positions.max={max}: must be at least context_length={shape.train_length}")
        if self.limit > LARGEST:
            raise ValueError(f"positions.max={max}: must be at most {LARGEST}")

    @classmethod
    def limit_for(cls, max: int | None, train_length: int) -> int:
        return cls.room * train_length if max is None else max


class Randomized(Drawn):
    """A sorted random subset of [0, max)."""

    name = "randomized"
    acts_on = "positions"
    relative = True
    room = 16
    gaps = True

    def __init__(self, shape: Shape, *, max: int | None, dense: bool) -> None:
        super().__init__(shape, max=max)
        self.dense = dense
        self.prefix_stable = dense  # else a longer window draws other positions

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        if self.dense and not training:
            return torch.arange(n)
        if n > self.limit:
            raise ValueError(f"{n} positions cannot be drawn below positions.max={self.limit}")
        return torch.randperm(self.limit, generator=generator)[:n].sort().values  # (n,)


class Offset(Drawn):
    """Contiguous positions from a random start."""

    name = "offset"
    acts_on = "positions"
    relative = True
    room = 8

    def __init__(self, shape: Shape, *, max: int | None) -> None:
        super().__init__(shape, max=max)

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        if not training:
            return torch.arange(n)
        start = torch.randint(self.limit - n + 1, (), generator=generator)
        return start + torch.arange(n)  # (n,)


POSITIONS: dict[str, type[Drawn]] = {"randomized": Randomized, "offset": Offset}


def check_positions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The `positions` group, names and types right. Raises UserError."""
    name = settings.get("name")
    known = ["contiguous", *POSITIONS]
    if name not in known:
        raise UserError("positions", name, "there are no such positions", allowed=known)
    given = {key: value for key, value in settings.items() if key != "name"}
    cls = POSITIONS.get(str(name), _Contiguous)
    return {"name": name, **check_arguments(cls, given, "positions")}


def position_limit(settings: Mapping[str, Any], train_length: int) -> int | None:
    """Where training positions end if they are drawn; None for 0..T-1."""
    cls = POSITIONS.get(settings["name"])
    return None if cls is None else cls.limit_for(settings["max"], train_length)


def distance_limit(settings: Mapping[str, Any], train_length: int) -> int | None:
    """Where the distances in training end if positions are drawn with gaps; None for 0..T-1."""
    cls = POSITIONS.get(settings["name"])
    return position_limit(settings, train_length) if cls is not None and cls.gaps else None


class _Contiguous:
    def __init__(self) -> None:
        pass
