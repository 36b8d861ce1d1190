"""Scores of some pairs made anew, as if query and key stood at another distance.

A pair's new distance is query(i) - key(j), so one more product of queries and keys, turned by those positions
instead, gives all of them; a bias is looked up at the new distance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.families.content import of_block
from posenc.evaluation.extend._base import RefusedError
from posenc.evaluation.extend._parts import is_decoupled, name_of
from posenc.model.decoder import Decoder

BY_DISTANCE = {"rotate", "distance_bias"}  # hooks that can be asked for another distance
NO_DISTANCE = {"positions", "visible"}  # hooks whose answer stays


@dataclass(frozen=True)
class Far:
    """Which pairs get another distance, and which."""

    pairs: Callable[[Tensor, Tensor], Tensor]  # q_pos (T,), k_pos (S,) -> (T, S) bool
    query: Callable[[Tensor], Tensor]  # (T,) -> (T,)
    key: Callable[[Tensor], Tensor]  # (S,) -> (S,)
    keys: int | None = None  # only the first so many keys are in such a pair; None: any


@dataclass
class _Window:
    """Unturned queries and keys of a layer, and once they are needed the turned ones."""

    q: Tensor  # (B, H, queries, D)
    k: Tensor  # (B, H or 1, S, D)
    turned: tuple[Tensor, Tensor] | None = None
    seen: int = 0  # keys that `turned` covers, with the queries among their tokens


class Redistanced(Encoding):
    """The scores of `far`'s pairs replaced. It goes first, before any other law of the scores."""

    name = "redistanced"
    acts_on = "scores"

    def __init__(self, shape: Shape, parts: Sequence[Encoding], far: Far) -> None:
        super().__init__(shape)
        self.turning = tuple(part for part in parts if "rotate" in part.hooks)  # at most one
        self.biased = tuple(part for part in parts if "distance_bias" in part.hooks)
        self.far = far

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> _Window:
        return _Window(q, k)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        k_far = k_pos[: self.far.keys]  # (S',)
        pairs = self.far.pairs(q_pos, k_pos)[:, : len(k_far)]  # (T, S')
        if not pairs.any():  # the window's first queries: spare them the product
            return s
        q_turned, k_turned = self._turned(state, k_pos, layer)
        product = of_block(q_turned, state.seen, s) @ k_turned[:, :, : len(k_far)].mT
        new = product.float() * state.q.shape[-1] ** -0.5  # (B, H, T, S'), by the width before it was turned
        for part in self.biased:
            new = new + part.bias(self.far.query(q_pos), self.far.key(k_far), layer)
        new = torch.where(pairs, new, s[..., : len(k_far)])
        return torch.cat((new, s[..., len(k_far) :]), dim=-1)

    def _turned(self, window: _Window, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Queries and keys at their new positions: of the whole window, where its last block comes first."""
        keys = len(k_pos)
        if window.turned is None or window.seen < keys:
            queries = window.q.shape[2] - window.k.shape[2] + keys  # those among the first `keys` tokens
            q, k = window.q[:, :, :queries], window.k[:, :, :keys][:, :, : self.far.keys]
            for part in self.turning:
                at = self.far.query(k_pos[keys - queries :]), self.far.key(k_pos[: self.far.keys])
                q, k = part.rotate(q, k, *at, layer)
            window.turned, window.seen = (q, k), keys
        return window.turned


def redistanced(shape: Shape, parts: Sequence[Encoding], far: Far) -> list[Encoding]:
    """The parts with the new distances; as they are where none of them asks for a distance."""
    by_distance = any(part.hooks & BY_DISTANCE for part in parts)
    return [Redistanced(shape, parts, far), *parts] if by_distance else list(parts)


def check_distances(model: Decoder, parts: Sequence[Encoding]) -> None:
    """Raises RefusedError unless every part's positions act by distance, or it reads none."""
    for part in parts:
        others = part.hooks - BY_DISTANCE - NO_DISTANCE
        if part.uses_positions and (others or not part.relative):
            raise RefusedError(f"{name_of(part)} does not act by distance alone")
        if "rotate" in part.hooks and is_decoupled(model):
            raise RefusedError("its attention turns a part of each head before scores can be made anew")


def check_some_distance(parts: Sequence[Encoding]) -> None:
    """Raises RefusedError where no part asks for a distance."""
    if not any(part.hooks & BY_DISTANCE for part in parts):
        raise RefusedError("no distance enters its scores")


def hidden_anyway(name: str, parts: Sequence[Encoding]) -> list[str]:
    """A warning where far pairs are hidden by windows that the model was trained with."""
    hiding = [name_of(part) for part in parts if "visible" in part.hooks]
    if not hiding:
        return []
    return [f"{name}: the window of {' and '.join(hiding)} still hides far keys, so that little may change"]
