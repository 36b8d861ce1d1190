"""ReRoPE: distances up to a window are exact, all others are the window.

Formula: min(i - j, w), w = `window`; leaky, with `leak` = a: w + (i - j - w)/a beyond w. By default w is
T - 1, the farthest distance that training shows, so that nothing changes up to T.
It costs a second product of queries and keys. Biases by distance are looked up at the new distance; a window
that the model was trained with keeps the true one.
Source: Su 2023, blog posts and code "ReRoPE" (no paper).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, float64
from posenc.evaluation.extend._base import Extension, Length, RefusedError, check_range
from posenc.evaluation.extend._parts import name_of, together
from posenc.evaluation.extend._redistance import (
    Far,
    check_distances,
    check_some_distance,
    hidden_anyway,
    redistanced,
)
from posenc.model.decoder import Decoder


class ReRoPE(Extension):
    """No distance that training did not show."""

    name = "rerope"
    paper = "Su 2023 (blog posts on ReRoPE)"
    formula = "min(i - j, w), or w + (i - j - w)/leak beyond w"
    applies = "encodings that act by distance alone: rotations, biases by distance, sums of them"
    grid: ClassVar = {"window": ("0.25x", "0.5x", None)}

    def __init__(self, model: Decoder, *, window: Length, leak: float | None) -> None:
        super().__init__(model)
        check_distances(model, self.parts)
        check_some_distance(self.parts)
        self.window = self.reach - 1 if window is None else self.tokens("window", window)
        if leak is not None:
            check_range("leak", leak, 1)
            for part in self.parts:
                if "distance_bias" in part.hooks:
                    raise RefusedError(f"{name_of(part)} has no bias at the broken distances of extend.leak")
        self.leak = leak

    def warnings(self) -> list[str]:
        return hidden_anyway(self.name, self.parts)

    def acting(self, window: int) -> Encoding:
        if self.span(window) - 1 <= self.window or self.leak == 1:
            return self.model.acting
        shape, w, leak = self.model.acting.shape, self.window, self.leak

        def pairs(q_pos: Tensor, k_pos: Tensor) -> Tensor:
            return q_pos[:, None] - k_pos > w

        if leak is None:
            far = Far(pairs, query=lambda q_pos: torch.full_like(q_pos, w), key=torch.zeros_like)
        else:
            far = Far(
                pairs,
                query=lambda q_pos: w + (float64(q_pos) - w) / leak,
                key=lambda k_pos: float64(k_pos) / leak,
            )
        return together(shape, redistanced(shape, self.parts, far))

    def resolved(self, window: int) -> dict[str, Any]:
        return {"window": self.window}
