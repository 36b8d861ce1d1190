"""Extensions that hide far pairs or give them a distance that training showed.

A pair's new distance is query(i) - key(j), so one more product of queries and keys, rotated to those
positions instead, gives all new scores; a bias is looked up at the new distance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding, Shape, float64
from posenc.encodings.families.content import of_block
from posenc.encodings.options import Window
from posenc.evaluation.extensions.base import (
    Extension,
    Length,
    RefusedError,
    check_range,
    has_gaps,
)
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


def capped(w: int, keys: int | None = None) -> Far:
    """Return the distance w for all pairs beyond it."""
    return Far(
        pairs=lambda q_pos, k_pos: q_pos[:, None] - k_pos > w,
        query=lambda q_pos: torch.full_like(q_pos, w),
        key=torch.zeros_like,
        keys=keys,
    )


@dataclass
class _Window:
    """Queries and keys of a layer before their rotation, and rotated to the new positions once needed."""

    q: Tensor  # (B, H, queries, D)
    k: Tensor  # (B, H or 1, S, D)
    turned: tuple[Tensor, Tensor] | None = None
    seen: int = 0  # keys that `turned` covers, with the queries among their tokens


class Redistanced(Encoding):
    """The scores of `far`'s pairs replaced. It goes first, before anything else on the scores."""

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
        new = product.float() * state.q.shape[-1] ** -0.5  # (B, H, T, S'), by the width before `rotate`
        for part in self.biased:
            new = new + part.bias(self.far.query(q_pos), self.far.key(k_far), layer)
        new = torch.where(pairs, new, s[..., : len(k_far)])
        return torch.cat((new, s[..., len(k_far) :]), dim=-1)

    def _turned(self, window: _Window, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys to their new positions, once a window: its last block comes first."""
        keys = len(k_pos)
        if window.turned is None or window.seen < keys:
            queries = window.q.shape[2] - window.k.shape[2] + keys  # those among the first `keys` tokens
            q, k = window.q[:, :, :queries], window.k[:, :, :keys][:, :, : self.far.keys]
            for part in self.turning:
                at = self.far.query(k_pos[keys - queries :]), self.far.key(k_pos[: self.far.keys])
                q, k = part.rotate(q, k, *at, layer)
            window.turned, window.seen = (q, k), keys
        return window.turned


class _Redistancing(Extension):
    """For encodings whose positions act by distance, or that carry none."""

    applies = "encodings that act by distance alone: rotations, biases by distance, sums of them"
    needs_distance: ClassVar[bool] = True

    def __init__(self, model: Decoder) -> None:
        super().__init__(model)
        decoupled = any(getattr(module, "decoupled", False) for module in model.modules())
        for part in self.parts:
            others = part.hooks - BY_DISTANCE - NO_DISTANCE
            if part.uses_positions and (others or not part.relative):
                raise RefusedError(f"{part.name} does not act by distance alone")
            if "rotate" in part.hooks and decoupled:
                raise RefusedError("its attention turns a part of each head before scores can be made anew")
        if self.needs_distance and not any(part.hooks & BY_DISTANCE for part in self.parts):
            raise RefusedError("no distance enters its scores")

    def redistanced(self, far: Far) -> list[Encoding]:
        """Return the parts with the new distances; as they are where none of them uses a distance."""
        if not any(part.hooks & BY_DISTANCE for part in self.parts):
            return list(self.parts)
        return [Redistanced(self.shape, self.parts, far), *self.parts]


class ReRoPE(_Redistancing):
    """Rectified positions: distances up to a window are exact, all others are the window.

    min(i - j, w), w = `window`; leaky, with `leak` = a: w + (i - j - w)/a beyond w. By default w is T - 1,
    the farthest distance that training shows. It costs a second product of queries and keys. A window that
    the model was trained with keeps the true distances.
    """

    name = "rerope"
    paper = "Su 2023 (blog posts on ReRoPE)"
    formula = "min(i - j, w), or w + (i - j - w)/leak beyond w"
    grid: ClassVar = {"window": ("0.25x", "0.5x", None)}

    def __init__(self, model: Decoder, *, window: Length, leak: float | None) -> None:
        super().__init__(model)
        self.window = self.reach - 1 if window is None else self.tokens("window", window)
        if leak is not None:
            check_range("leak", leak, 1)
            for part in self.parts:
                if "distance_bias" in part.hooks:
                    raise RefusedError(f"{part.name} has no bias at the broken distances of extend.leak")
        self.leak = leak

    def effective_encoding(self, window: int) -> Encoding:
        if self.span(window) - 1 <= self.window or self.leak == 1:
            return self.trained
        w, leak = self.window, self.leak
        far = capped(w)
        if leak is not None:
            far = Far(
                far.pairs,
                query=lambda q_pos: w + (float64(q_pos) - w) / leak,
                key=lambda k_pos: float64(k_pos) / leak,
            )
        return self.together(self.redistanced(far))

    def resolved(self, window: int) -> dict[str, Any]:
        return {"window": self.window}


class SelfExtend(_Redistancing):
    """Near distances exact, far ones counted in groups of tokens.

    i - j below w = `window`, else floor(i/g) - floor(j/g) + w - floor(w/g), g = `group`. With `auto`, g is
    the smallest whose farthest distance at the window W lies inside training, so 1 (no change) up to T; a
    number is used at every window. w is half of T by default. Cost and biases as for `rerope`.
    """

    name = "self_extend"
    paper = "Jin et al. 2024, arXiv 2401.01325"
    formula = "i - j below w, else floor(i/g) - floor(j/g) + w - floor(w/g)"
    grid: ClassVar = {"window": ("0.25x", "0.5x", "0.75x")}

    def __init__(self, model: Decoder, *, window: Length, group: int | Literal["auto"]) -> None:
        super().__init__(model)
        self.near = max(1, self.reach // 2) if window is None else self.tokens("window", window)
        if self.near >= self.reach:
            allowed = f"1 to {self.reach - 1} tokens, distances that training shows"
            raise UserError("extend.window", window, "leaves no distance for groups", allowed=allowed)
        if group != "auto":
            check_range("group", group, 1)
        self.group = group

    def farthest(self, window: int, group: int) -> int:
        """Return the largest distance at a window of W tokens."""
        last = self.span(window) - 1
        return last if last < self.near else last // group + self.near - self.near // group

    def g(self, window: int) -> int:
        """Return the group's size at a window of W tokens."""
        if self.group != "auto":
            return self.group
        return next(g for g in range(1, self.span(window) + 1) if self.farthest(window, g) < self.reach)

    def effective_encoding(self, window: int) -> Encoding:
        g, w = self.g(window), self.near
        if g == 1 or self.span(window) <= w:
            return self.trained
        far = Far(
            pairs=lambda q_pos, k_pos: q_pos[:, None] - k_pos >= w,
            query=lambda q_pos: q_pos // g + (w - w // g),
            key=lambda k_pos: k_pos // g,
        )
        return self.together(self.redistanced(far))

    def resolved(self, window: int) -> dict[str, Any]:
        return {"window": self.near, "group": self.g(window)}


class SlidingWindow(Extension):
    """Key j is seen where i - j < w, w = `window`, T by default, in every layer.

    A window that the model was trained with stays as well. Through the layers a token still depends on older
    ones.
    """

    name = "window"
    paper = "Beltagy, Peters, Cohan 2020 (Longformer), arXiv 2004.05150"
    formula = "keys at i - j < w"
    applies = "every encoding"
    grid: ClassVar = {"window": ("0.25x", "0.5x", None)}

    def __init__(self, model: Decoder, *, window: Length) -> None:
        super().__init__(model)
        self.window = self.reach if window is None else self.tokens("window", window)

    def effective_encoding(self, window: int) -> Encoding:
        if self.span(window) <= self.window:
            return self.trained
        return self.together([*self.parts, Window(self.shape, window=self.window)])

    def resolved(self, window: int) -> dict[str, Any]:
        return {"window": self.window}


class FirstAndNear(Encoding):
    """Key j is seen where j < `first` or i - j < `near`."""

    name = "first_and_near"
    acts_on = "mask"

    def __init__(self, shape: Shape, *, first: int, near: int) -> None:
        super().__init__(shape)
        self.first, self.near = first, near

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        is_first = torch.arange(len(k_pos), device=k_pos.device) < self.first  # (S,)
        return is_first | (q_pos[:, None] - k_pos < self.near)  # (T, S)


class _FirstKeys(_Redistancing):
    """Sinks and LM-Infinite: the first keys of the text, seen by every query beside its nearest ones."""

    applies = (
        "encodings that act by distance alone, or carry no position: rotations, biases by distance, sums of "
        "them; not with windows of their own"
    )
    needs_distance = False
    window: int

    def __init__(self, model: Decoder, *, sinks: int) -> None:
        super().__init__(model)
        self.check_softmax()
        for part in self.parts:
            name = part.name
            if "prepare" in part.hooks:
                raise RefusedError(f"{name} counts along all of the text, also what a cache has dropped")
            if "visible" in part.hooks:
                raise RefusedError(f"{name} hides the first keys by a window that the model was trained with")
        if has_gaps(self.trained):
            raise RefusedError("its positions are drawn with gaps, so that a place in the cache has none")
        check_range("sinks", sinks, 1)
        self.sinks = sinks

    def resolved(self, window: int) -> dict[str, Any]:
        return {"sinks": self.sinks, "window": self.window}


class Sinks(_FirstKeys):
    """Attention sinks: the first keys stay visible beside a window, and positions count inside the cache.

    The first n = `sinks` keys and those at i - j < w = `window` are seen. The cache holds c = n + w keys, T
    by default, and positions are places in it: a first key j stands at distance min(i, c-1) - j, the others
    at their true one. Not for absolute embeddings: a key's place is another for every query that sees it.
    """

    name = "sinks"
    paper = "Xiao, Tian, Chen, Han, Lewis 2023 (StreamingLLM), arXiv 2309.17453"
    formula = "the first n keys, at distance min(i, n+w-1) - j, and those at i - j < w"
    grid: ClassVar = {"sinks": (1, 4)}

    def __init__(self, model: Decoder, *, sinks: int, window: Length) -> None:
        super().__init__(model, sinks=sinks)
        if window is None and sinks >= self.reach:
            allowed = f"1 to {self.reach - 1}, or say extend.window as well"
            raise UserError("extend.sinks", sinks, "leaves no room in a cache of T tokens", allowed=allowed)
        self.window = self.reach - sinks if window is None else self.tokens("window", window)

    def effective_encoding(self, window: int) -> Encoding:
        first, cache = self.sinks, self.sinks + self.window
        if self.span(window) <= cache:
            return self.trained
        far = Far(
            pairs=lambda q_pos, k_pos: (q_pos >= cache)[:, None].expand(-1, len(k_pos)),
            query=lambda q_pos: q_pos.clamp_max(cache - 1),
            key=lambda k_pos: k_pos,
            keys=first,
        )
        mask = FirstAndNear(self.shape, first=first, near=self.window)
        return self.together([*self.redistanced(far), mask])


class LMInfinite(_FirstKeys):
    """The first keys stay visible beside a window, at a distance that is capped.

    The first n = `sinks` keys and those at i - j < w = `window` are seen, at distance min(i - j, w). By
    default w = T - 1, the farthest distance that training shows. Departures: the paper's window and cap are
    T; n is 10, the least of the 10 to 100 between which its authors see little difference; the attention to
    middle tokens of highest score, for retrieval, is left out.
    """

    name = "lm_infinite"
    paper = "Han et al. 2023, arXiv 2308.16137"
    formula = "the first n keys and those at i - j < w, at distance min(i - j, w)"
    grid: ClassVar = {"sinks": (1, 4, 10)}

    def __init__(self, model: Decoder, *, sinks: int, window: Length) -> None:
        super().__init__(model, sinks=sinks)
        self.window = max(1, self.reach - 1) if window is None else self.tokens("window", window)

    def effective_encoding(self, window: int) -> Encoding:
        first, w = self.sinks, self.window
        if self.span(window) - 1 <= w:
            return self.trained
        far = capped(w, first)
        return self.together([*self.redistanced(far), FirstAndNear(self.shape, first=first, near=w)])
