"""SelfExtend: near distances exact, far ones counted in groups of tokens.

Formula: i - j below w = `window`, else floor(i/g) - floor(j/g) + w - floor(w/g), g = `group`. With `auto`, g
is the smallest whose farthest distance at the window W lies inside training, so 1 (no change) up to T; a
number is used at every window. w is half of T by default.
It costs a second product of queries and keys. Biases by distance are looked up at the new distance; a window
that the model was trained with keeps the true one.
Paper: Jin et al. 2024, arXiv 2401.01325.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding
from posenc.evaluation.extend._base import Extension, Length, check_range
from posenc.evaluation.extend._parts import together
from posenc.evaluation.extend._redistance import (
    Far,
    check_distances,
    check_some_distance,
    hidden_anyway,
    redistanced,
)
from posenc.model.decoder import Decoder


class SelfExtend(Extension):
    """Two levels of attention: neighbours, and groups."""

    name = "self_extend"
    paper = "Jin et al. 2024, arXiv 2401.01325"
    formula = "i - j below w, else floor(i/g) - floor(j/g) + w - floor(w/g)"
    applies = "encodings that act by distance alone: rotations, biases by distance, sums of them"
    grid: ClassVar = {"window": ("0.25x", "0.5x", "0.75x")}

    def __init__(self, model: Decoder, *, window: Length, group: int | Literal["auto"]) -> None:
        super().__init__(model)
        check_distances(model, self.parts)
        check_some_distance(self.parts)
        self.near = max(1, self.reach // 2) if window is None else self.tokens("window", window)
        if self.near >= self.reach:
            allowed = f"1 to {self.reach - 1} tokens, distances that training shows"
            raise UserError("extend.window", window, "leaves no distance for groups", allowed=allowed)
        if group != "auto":
            check_range("group", group, 1)
        self.group = group

    def warnings(self) -> list[str]:
        return hidden_anyway(self.name, self.parts)

    def farthest(self, window: int, group: int) -> int:
        """The largest distance at a window of W tokens."""
        last = self.span(window) - 1
        return last if last < self.near else last // group + self.near - self.near // group

    def g(self, window: int) -> int:
        """The group's size at a window of W tokens."""
        if self.group != "auto":
            return self.group
        return next(g for g in range(1, self.span(window) + 1) if self.farthest(window, g) < self.reach)

    def acting(self, window: int) -> Encoding:
        g, w = self.g(window), self.near
        if g == 1 or self.span(window) <= w:
            return self.model.acting
        shape = self.model.acting.shape
        far = Far(
            pairs=lambda q_pos, k_pos: q_pos[:, None] - k_pos >= w,
            query=lambda q_pos: q_pos // g + (w - w // g),
            key=lambda k_pos: k_pos // g,
        )
        return together(shape, redistanced(shape, self.parts, far))

    def resolved(self, window: int) -> dict[str, Any]:
        return {"window": self.near, "group": self.g(window)}
