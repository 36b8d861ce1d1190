"""The first keys of the text, seen by every query beside its nearest ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape
from posenc.evaluation.extend._base import RefusedError
from posenc.evaluation.extend._parts import has_gaps, name_of
from posenc.evaluation.extend._redistance import check_distances
from posenc.evaluation.extend._scores import check_softmax
from posenc.model.decoder import Decoder

APPLIES = (
    "encodings that act by distance alone, or carry no position: rotations, biases by distance, sums of "
    "them; not with windows of their own"
)


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


def check_sinks(model: Decoder, parts: Sequence[Encoding]) -> None:
    """Raises RefusedError where the first keys would not stand as a cache without the others has them."""
    check_distances(model, parts)
    check_softmax(parts)
    for part in parts:
        if "prepare" in part.hooks:
            raise RefusedError(f"{name_of(part)} counts along all of the text, also what a cache has dropped")
        if "visible" in part.hooks:
            raise RefusedError(
                f"{name_of(part)} hides the first keys by a window that the model was trained with"
            )
    if has_gaps(model.acting):
        raise RefusedError("its positions are drawn with gaps, so that a place in the cache has none")
