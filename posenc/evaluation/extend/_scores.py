"""Logits multiplied on their way into the softmax, biases and all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from posenc.encodings.base import Encoding, Shape
from posenc.evaluation.extend._base import RefusedError
from posenc.evaluation.extend._parts import name_of


class Times(Encoding):
    """All logits times one number. It goes last, behind every other law of the scores."""

    name = "times"
    acts_on = "scores"
    relative = True
    uses_positions = False

    def __init__(self, shape: Shape, times: float) -> None:
        super().__init__(shape)
        self.times = times

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * self.times  # (B, H, T, S)


def check_softmax(parts: Sequence[Encoding]) -> None:
    """Raises RefusedError where a part stands in the place of the softmax."""
    for part in parts:
        if "weights" in part.hooks:
            raise RefusedError(f"{name_of(part)} has no softmax")
