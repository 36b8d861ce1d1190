"""The base class of extensions that give far pairs of query i and key j a distance that training showed.

The new distance has the form query(i) - key(j). So queries are rotated to positions query(i) and keys to
key(j), and one more product of the two gives all new scores. A bias is looked up at the new distance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.shared.blocks import rows_of_block
from posenc.evaluation.extensions.base import Extension
from posenc.model.kernels import rounded_keys

HOOKS_BY_DISTANCE = {"rotate", "distance_bias"}  # they can act at another distance than the true one
KEPT_HOOKS = {"positions", "visible"}  # they go on acting at the true positions


@dataclass(frozen=True)
class FarPairs:
    """Pairs of query and key that get another distance: query(i) - key(j)."""

    pairs: Callable[[Tensor, Tensor], Tensor]  # tells which pairs: q_pos (T,), k_pos (S,) -> (T, S) bool
    query: Callable[[Tensor], Tensor]  # from positions of queries to their new ones: (T,) -> (T,)
    key: Callable[[Tensor], Tensor]  # from positions of keys to their new ones: (S,) -> (S,)
    keys: int | None = None  # only this many first keys are in such a pair; None: any key may be


def pairs_apart(w: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the function that tells which pairs are w or more tokens apart."""
    return lambda q_pos, k_pos: q_pos[:, None] - k_pos >= w


def cap_distance(w: int, keys: int | None = None) -> FarPairs:
    """Give all pairs beyond the distance w the distance w."""
    return FarPairs(pairs_apart(w + 1), lambda pos: torch.full_like(pos, w), torch.zeros_like, keys)


@dataclass
class Unrotated:
    """Queries and keys of a layer before their rotation, and rotated to the new positions."""

    q: Tensor  # (B, H, queries, D)
    k: Tensor  # (B, H or 1, S, D)
    q_new: Tensor | None = None  # as q; None until they are rotated
    k_new: Tensor | None = None  # as k
    keys: int = 0  # how many keys k_new has


class Redistanced(Encoding):
    """Replace the scores of far pairs, before anything else changes scores."""

    name = "redistanced"
    acts_on = "scores"

    def __init__(self, shape: Shape, parts: Sequence[Encoding], far: FarPairs) -> None:
        super().__init__(shape)
        self.turning = tuple(part for part in parts if "rotate" in part.hooks)  # at most one
        self.biased = tuple(part for part in parts if "distance_bias" in part.hooks)
        self.far = far

    def share_of_keys(self, window: int) -> float:
        """Return the share of the keys of a window whose scores are made anew."""
        return 1.0 if self.far.keys is None else min(1.0, self.far.keys / window)

    # `prepare` is the only hook that gets queries and keys before `rotate`.
    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> Unrotated:
        return Unrotated(q, k)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        unrotated: Unrotated = state
        far_pos = k_pos[: self.far.keys]  # (S',) of the keys that may be in a far pair
        pairs = self.far.pairs(q_pos, k_pos)[:, : len(far_pos)]  # (T, S')
        if not pairs.any():  # the first queries of a window have no far keys, so no second product
            return s
        if unrotated.keys < len(k_pos):
            self._rotate_anew(unrotated, k_pos, layer)
        assert unrotated.q_new is not None and unrotated.k_new is not None
        q_block = rows_of_block(unrotated.q_new, unrotated.keys, s)  # (B, H, T, D)
        # oneDNN keeps code and memory for every shape of a product. When each block had its own number of
        # keys, self_extend took 6.5 GB at 32,768 tokens, twice what was planned.
        k_block = unrotated.k_new[:, :, : rounded_keys(len(far_pos), unrotated.keys)]
        product = (q_block @ k_block.mT)[..., : len(far_pos)]  # (B, H, T, S')
        width = unrotated.q.shape[-1]  # D before `rotate`, which may add to it
        far_scores = product.float() * width**-0.5  # (B, H, T, S')
        for part in self.biased:
            # The scores that it replaces hold the bias at the true distance, which goes with them.
            far_scores = far_scores + part.bias(self.far.query(q_pos), self.far.key(far_pos), layer)
        new_scores = torch.where(pairs, far_scores, s[..., : len(far_pos)])
        if len(far_pos) == len(k_pos):  # joining nothing to them would copy all scores once more
            return new_scores
        return torch.cat((new_scores, s[..., len(far_pos) :]), dim=-1)

    def _rotate_anew(self, unrotated: Unrotated, k_pos: Tensor, layer: int) -> None:
        """Rotate queries and keys to the new positions.

        This happens once a layer, because the block with the most keys comes first.
        """
        n_keys = len(k_pos)
        # queries may be fewer than keys: they are the last tokens of the text
        n_queries = unrotated.q.shape[2] - unrotated.k.shape[2] + n_keys
        q_new = unrotated.q[:, :, :n_queries]
        k_new = unrotated.k[:, :, :n_keys][:, :, : self.far.keys]
        q_pos_new = self.far.query(k_pos[n_keys - n_queries :])
        k_pos_new = self.far.key(k_pos[: self.far.keys])
        for part in self.turning:
            q_new, k_new = part.rotate(q_new, k_new, q_pos_new, k_pos_new, layer)
        unrotated.q_new = q_new
        unrotated.k_new = k_new
        unrotated.keys = n_keys


class Redistancing(Extension):
    """Change distances of an encoding that acts by distance, or by no position at all."""

    applies = "encodings that act by distance alone: rotations, biases by distance, sums of them"
    needs_distance: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        # Latent attention: its rotated part of a head is made inside of the module, where no hook comes.
        is_decoupled = any(getattr(module, "is_decoupled", False) for module in self.model.modules())
        for part in self.parts:
            unfit_hooks = part.hooks - HOOKS_BY_DISTANCE - KEPT_HOOKS
            if part.uses_positions and (unfit_hooks or not part.relative):
                raise self.refusal(f"{part.name} does not act by distance alone")
            if "rotate" in part.hooks and is_decoupled:
                raise self.refusal("its attention turns a part of each head before scores can be made anew")
        if self.needs_distance and not self._has_distance():
            raise self.refusal("no distance enters its scores")

    def _has_distance(self) -> bool:
        """Tell whether any part acts by distance."""
        return any(part.hooks & HOOKS_BY_DISTANCE for part in self.parts)

    def far_pairs(self, window: int) -> list[FarPairs]:
        """Return the pairs with new distances at a window of W tokens; [] if nothing changes."""
        raise NotImplementedError

    def effective_encoding(self, window: int) -> Encoding:
        far_pairs = self.far_pairs(window)
        if not far_pairs:
            return self.trained
        parts = list(self.parts)
        # Without any, as with `nope`, the window of `sinks` and `lm_infinite` is all that changes.
        if self._has_distance():
            redistanced = [Redistanced(self.shape, self.parts, pairs) for pairs in far_pairs]
            # They come first, so that parts which change scores (a temperature) change the new ones.
            parts = [*redistanced, *parts]
        return self.compose(parts)
