"""Extensions that hide far pairs or give them a distance that training showed.

A pair's new distance is query(i) - key(j), so one more product of queries and keys, rotated to those
positions instead, gives all new scores; a bias is looked up at the new distance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.encodings.attention_options.window import Window
from posenc.encodings.base import Encoding, Shape, float64
from posenc.encodings.shared.blocks import rows_of_block
from posenc.evaluation.extensions import Extension, Length

BY_DISTANCE = {"rotate", "distance_bias"}  # hooks that can be asked for another distance
NO_DISTANCE = {"positions", "visible"}  # hooks whose answer stays


@dataclass(frozen=True)
class Far:
    """Which pairs get another distance, and which."""

    pairs: Callable[[Tensor, Tensor], Tensor]  # q_pos (T,), k_pos (S,) -> (T, S) bool
    query: Callable[[Tensor], Tensor]  # (T,) -> (T,)
    key: Callable[[Tensor], Tensor]  # (S,) -> (S,)
    keys: int | None = None  # only the first so many keys are in such a pair; None: any


def at_least(w: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Return which pairs are w or more apart."""
    return lambda q_pos, k_pos: q_pos[:, None] - k_pos >= w


def capped(w: int, keys: int | None = None) -> Far:
    """Return the distance w for all pairs beyond it."""
    return Far(at_least(w + 1), lambda pos: torch.full_like(pos, w), torch.zeros_like, keys)


class Redistanced(Encoding):
    """The scores of `far`'s pairs replaced. It goes first, before anything else on the scores."""

    name = "redistanced"
    acts_on = "scores"

    def __init__(self, shape: Shape, parts: Sequence[Encoding], far: Far) -> None:
        super().__init__(shape)
        self.turning = tuple(part for part in parts if "rotate" in part.hooks)  # at most one
        self.biased = tuple(part for part in parts if "distance_bias" in part.hooks)
        self.far = far

    def prepare(self, x: Tensor, q: Tensor, k: Tensor, layer: int) -> dict[str, Any]:
        return {"q": q, "k": k}  # before their rotation: (B, H, queries, D), (B, H or 1, S, D)

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        k_far = k_pos[: self.far.keys]  # (S',)
        pairs = self.far.pairs(q_pos, k_pos)[:, : len(k_far)]  # (T, S')
        if not pairs.any():  # the window's first queries: spare them the product
            return s
        if state.get("seen", 0) < len(k_pos):  # rotated to the new positions once: the last block comes first
            queries = state["q"].shape[2] - state["k"].shape[2] + len(k_pos)  # among the keys' tokens
            turned = state["q"][:, :, :queries], state["k"][:, :, : len(k_pos)][:, :, : self.far.keys]
            for part in self.turning:
                at = self.far.query(k_pos[len(k_pos) - queries :]), self.far.key(k_far)
                turned = part.rotate(*turned, *at, layer)
            state.update(turned=turned, seen=len(k_pos))
        q_new, k_new = state["turned"]
        product = rows_of_block(q_new, state["seen"], s) @ k_new[:, :, : len(k_far)].mT
        new = product.float() * state["q"].shape[-1] ** -0.5  # (B, H, T, S'), by the width before `rotate`
        for part in self.biased:
            new = new + part.bias(self.far.query(q_pos), self.far.key(k_far), layer)
        new = torch.where(pairs, new, s[..., : len(k_far)])
        return torch.cat((new, s[..., len(k_far) :]), dim=-1)


class _Redistancing(Extension):
    """For encodings whose positions act by distance, or that carry none."""

    applies = "encodings that act by distance alone: rotations, biases by distance, sums of them"
    needs_distance: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        decoupled = any(getattr(module, "decoupled", False) for module in self.model.modules())
        for part in self.parts:
            others = part.hooks - BY_DISTANCE - NO_DISTANCE
            if part.uses_positions and (others or not part.relative):
                raise self.refusal(f"{part.name} does not act by distance alone")
            if "rotate" in part.hooks and decoupled:
                raise self.refusal("its attention turns a part of each head before scores can be made anew")
        if self.needs_distance and not any(part.hooks & BY_DISTANCE for part in self.parts):
            raise self.refusal("no distance enters its scores")

    def far(self, window: int) -> list[Far]:
        """Return the pairs with new distances at a window of W tokens; [] if nothing changes."""
        raise NotImplementedError

    def effective_encoding(self, window: int) -> Encoding:
        if not (far := self.far(window)):
            return self.trained
        by_distance = any(part.hooks & BY_DISTANCE for part in self.parts)
        first = [Redistanced(self.shape, self.parts, one) for one in far] if by_distance else []
        return self.together([*first, *self.parts])


@dataclass(eq=False, kw_only=True)
class ReRoPE(_Redistancing):
    """min(i - j, w), w = `window`, T - 1 by default; with `leak` = a: w + (i - j - w)/a beyond w.

    It costs a second product of queries and keys. A window of the training keeps the true distances.
    """

    name = "rerope"
    paper = "Su 2023 (blog posts on ReRoPE)"
    formula = "min(i - j, w), or w + (i - j - w)/leak beyond w"
    grid: ClassVar = {"window": ("0.25x", "0.5x", None)}

    window: Length
    leak: float | None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.w = self.tokens("window", self.window, self.reach - 1)
        if self.leak is not None:
            self.check_range("leak", self.leak, 1)
            for part in self.parts:
                if "distance_bias" in part.hooks:
                    raise self.refusal(f"{part.name} has no bias at the broken distances of extend.leak")

    def far(self, window: int) -> list[Far]:
        w, leak = self.w, self.leak
        if self.span(window) - 1 <= w or leak == 1:
            return []
        far = capped(w)
        if leak is None:
            return [far]
        query, key = lambda pos: w + (float64(pos) - w) / leak, lambda pos: float64(pos) / leak
        return [Far(far.pairs, query, key)]


@dataclass(eq=False, kw_only=True)
class SelfExtend(_Redistancing):
    """i - j below w = `window` (T/2), else floor(i/g) - floor(j/g) + w - floor(w/g), g = `group`.

    With `auto`, g is the smallest whose farthest distance at the window W lies inside training, so 1 up to T.
    """

    name = "self_extend"
    paper = "Jin et al. 2024, arXiv 2401.01325"
    formula = "i - j below w, else floor(i/g) - floor(j/g) + w - floor(w/g)"
    grid: ClassVar = {"window": ("0.25x", "0.5x", "0.75x")}

    window: Length
    group: int | Literal["auto"]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.near = self.tokens("window", self.window, max(1, self.reach // 2), self.reach - 1)
        if self.group != "auto":
            self.check_range("group", self.group, 1)

    def farthest(self, window: int, group: int) -> int:
        """Return the largest distance at a window of W tokens."""
        last = self.span(window) - 1
        return last if last < self.near else last // group + self.near - self.near // group

    def g(self, window: int) -> int:
        """Return the group's size at a window of W tokens."""
        if self.group != "auto":
            return self.group
        return next(g for g in range(1, self.span(window) + 1) if self.farthest(window, g) < self.reach)

    def far(self, window: int) -> list[Far]:
        g, w = self.g(window), self.near
        if g == 1 or self.span(window) <= w:
            return []
        return [Far(at_least(w), query=lambda pos: pos // g + (w - w // g), key=lambda pos: pos // g)]

    def resolved(self, window: int) -> dict[str, Any]:
        return {**self.lengths, "group": self.g(window)}


@dataclass(eq=False, kw_only=True)
class DualChunk(_Redistancing):
    """Positions begin anew in chunks of s = `chunk` tokens (3/4 T), so that no distance is beyond T - 1.

    Keys stand at j mod s. Queries stand at i mod s for keys of their own chunk, at min(i mod s + s, T-1) for
    those of the chunk before, at T-1 for earlier ones. Up to min(T, 2s) tokens nothing changes.
    Departure: the released code has chunks of 11/16 T and one distance more.
    """

    name = "dca"
    paper = "An et al. 2024 (Dual Chunk Attention), arXiv 2402.17463"
    formula = "i - j in a chunk of s, min(i mod s + s, T-1) - j mod s in the next, T-1 - j mod s beyond"
    grid: ClassVar = {"chunk": ("0.5x", None)}

    chunk: Length

    def __post_init__(self) -> None:
        super().__post_init__()
        self.s = self.tokens("chunk", self.chunk, max(1, self.reach * 3 // 4), self.reach)

    def far(self, window: int) -> list[Far]:
        s, last = self.s, self.reach - 1
        if self.span(window) <= min(last + 1, 2 * s):
            return []
        return [
            Far(self._apart(1), lambda pos: (pos % s + s).clamp_max(last), lambda pos: pos % s),
            Far(self._apart(2), lambda pos: torch.full_like(pos, last), lambda pos: pos % s),
        ]

    def _apart(self, chunks: int) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda q_pos, k_pos: (q_pos // self.s)[:, None] - k_pos // self.s >= chunks


@dataclass(eq=False, kw_only=True)
class Shifted(_Redistancing):
    """STRING: distances from S = `shift` on (T/3) are i - j - S + w, w = `near`, at windows within T too.

    Distances that training showed often stand in for the farthest, which it showed seldom. Beyond T + S - w
    tokens there are unseen ones again. Departure: cos and sin times 1.07 in the released code, not here.
    """

    name = "string"
    paper = "An et al. 2024 (STRING), arXiv 2410.18745"
    formula = "i - j below S, else i - j - S + w"
    grid: ClassVar = {"shift": ("0.25x", None, "0.5x")}

    shift: Length
    near: Length

    def __post_init__(self) -> None:
        super().__post_init__()
        self.by = self.tokens("shift", self.shift, max(2, self.reach // 3))
        self.w = self.tokens("near", self.near, max(1, self.reach // 1024))
        if self.w >= self.by:
            problem = f"no distance is left out below extend.near={self.w}"
            raise UserError("extend.shift", self.shift, problem, allowed=f"from {self.w + 1} tokens")

    def far(self, window: int) -> list[Far]:
        by, w = self.by, self.w
        if self.span(window) <= by:
            return []
        return [Far(at_least(by), query=lambda pos: pos - by + w, key=lambda pos: pos)]


@dataclass(eq=False, kw_only=True)
class SlidingWindow(Extension):
    """Key j is seen where i - j < w, w = `window`, T by default, in every layer, beside a trained window."""

    name = "window"
    paper = "Beltagy, Peters, Cohan 2020 (Longformer), arXiv 2004.05150"
    formula = "keys at i - j < w"
    applies = "every encoding"
    grid: ClassVar = {"window": ("0.25x", "0.5x", None)}

    window: Length

    def __post_init__(self) -> None:
        super().__post_init__()
        self.w = self.tokens("window", self.window, self.reach)

    def effective_encoding(self, window: int) -> Encoding:
        if self.span(window) <= self.w:
            return self.trained
        return self.together([*self.parts, Window(self.shape, window=self.w)])


@dataclass(eq=False, kw_only=True)
class _FirstKeys(_Redistancing):
    """Sinks and LM-Infinite: the first keys of the text, seen by every query beside its nearest ones."""

    applies = (
        "encodings that act by distance alone, or carry no position: rotations, biases by distance, sums of "
        "them; not with windows of their own"
    )
    needs_distance = False
    sinks: int
    window: Length

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_softmax()
        for part in self.parts:
            name = part.name
            if "prepare" in part.hooks:
                raise self.refusal(f"{name} counts along all of the text, also what a cache has dropped")
            if "visible" in part.hooks:
                raise self.refusal(f"{name} hides the first keys by a window that the model was trained with")
        if self.has_gaps():
            raise self.refusal("its positions are drawn with gaps, so that a place in the cache has none")
        self.check_range("sinks", self.sinks, 1)
        self.lengths["sinks"] = self.sinks

    def see(self, default: int) -> None:
        """Hide all but the first keys and the nearest ones, `default` of these where the user gave none."""
        self.w = self.tokens("window", self.window, default)
        self.parts += (Window(self.shape, window=self.w, first=self.sinks),)


class Sinks(_FirstKeys):
    """The first n = `sinks` keys and those at i - j < w = `window` are seen; a cache holds c = n + w, or T.

    Positions are places in it: a first key j stands at distance min(i, c-1) - j. Not for absolute
    embeddings: a key's place is another for every query that sees it.
    """

    name = "sinks"
    paper = "Xiao, Tian, Chen, Han, Lewis 2023 (StreamingLLM), arXiv 2309.17453"
    formula = "the first n keys, at distance min(i, n+w-1) - j, and those at i - j < w"
    grid: ClassVar = {"sinks": (1, 4)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is None and self.sinks >= self.reach:
            problem = "leaves no room in a cache of T tokens"
            allowed = f"1 to {self.reach - 1}, or say extend.window as well"
            raise UserError("extend.sinks", self.sinks, problem, allowed=allowed)
        self.see(self.reach - self.sinks)

    def far(self, window: int) -> list[Far]:
        cache = self.sinks + self.w
        if self.span(window) <= cache:
            return []
        return [
            Far(
                pairs=lambda q_pos, k_pos: (q_pos >= cache)[:, None].expand(-1, len(k_pos)),
                query=lambda pos: pos.clamp_max(cache - 1),
                key=lambda pos: pos,
                keys=self.sinks,
            )
        ]


class LMInfinite(_FirstKeys):
    """The first n = `sinks` keys and those at i - j < w = `window` (T - 1) are seen, at most w away.

    Departures: the paper has T for w, n from 10 to 100, and attention to middle tokens of highest score.
    """

    name = "lm_infinite"
    paper = "Han et al. 2023, arXiv 2308.16137"
    formula = "the first n keys and those at i - j < w, at distance min(i - j, w)"
    grid: ClassVar = {"sinks": (1, 4, 10)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.see(max(1, self.reach - 1))

    def far(self, window: int) -> list[Far]:
        return [] if self.span(window) - 1 <= self.w else [capped(self.w, self.sinks)]
