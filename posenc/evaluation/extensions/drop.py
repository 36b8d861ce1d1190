"""The encoding removed at every window; its options (a window, drawn positions, a scale) stay."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.encodings.families.absolute import Absolute
from posenc.evaluation.extensions.base import (
    Extension,
    RefusedError,
    leaves,
    moves,
    with_random_numbers,
)
from posenc.model.decoder import Decoder


class Drop(Extension):
    """The trained model without its encoding.

    Rotations, biases and changes of the scores are left out; the vectors of an absolute encoding are zero,
    while its factor on the token embeddings and the map of `combine: concat` stay. The first step of DroPE
    alone: the paper then trains on for a while.
    """

    name = "drop"
    paper = "Gelberg, Eguchi, Akiba, Cetin 2025 (DroPE), arXiv 2512.12167"
    formula = "the trained model without its encoding"
    applies = (
        "encodings that can be taken out alone: rotations, biases, laws of the scores, absolute vectors; not "
        "what stands for the softmax, nor what changes queries and keys at position 0 as well"
    )

    def __init__(self, model: Decoder) -> None:
        super().__init__(model)
        own = leaves(model.encoding)
        if not any(part.hooks for part in own):
            raise RefusedError("there is nothing to remove")
        self.kept = [one for part in own for one in _left_of(part)] + list(self.parts[len(own) :])

    def effective_encoding(self, window: int) -> Encoding:
        return self.together(self.kept)


def _left_of(part: Encoding) -> list[Encoding]:
    """Return what stays of a removed encoding. Raises RefusedError where more than positions would go."""
    name = part.name
    if "weights" in part.hooks:
        raise RefusedError(f"{name} stands in the place of the softmax, which would come back")
    if "rotate" in part.hooks and moves(with_random_numbers(part), torch.zeros(3, dtype=torch.int64)):
        raise RefusedError(
            f"{name} changes queries and keys at position 0 too, so that more would go with it"
        )
    if "embed" not in part.hooks:
        return []
    if not isinstance(part, Absolute):
        raise RefusedError(f"what {name} leaves of the embeddings without positions is not known")
    emptied = copy.copy(part)
    width = part.shape.d_model

    def zeros(pos: Tensor, place: int) -> Tensor:
        return torch.zeros(len(pos), width, device=pos.device)

    emptied.rows = zeros  # type: ignore[method-assign]
    emptied.beyond = emptied.ends_at = None
    return [emptied]
