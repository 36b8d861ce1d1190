"""Keys that hold a part of the token before: one layer can then find what followed an earlier token.

Formula: k_t[c] <- k_(t-1)[c] for some numbers c of a head.
  c  the numbers that the encoding leaves unrotated; if it rotates none at all, the second half of the head
The first token keeps its own key. Nothing is learned.
Setting: `attention.key_offset=true`.
Source: record 49 of modded-nanogpt (partial key offset), which has it in its layers with long windows. Here
every layer with unrotated numbers has it.
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from posenc.encodings.attention_options.base import AttentionOption
from posenc.encodings.base import Encoding, Shape


class KeyOffset(AttentionOption):
    """The unrotated part of each key is that of the token before."""

    name = "key_offset"
    key = "key_offset"
    choice = bool
    off = False
    acts_on = "keys"
    uses_positions = False
    needs_whole_heads = True
    hint_at_misfit = "encoding=rope encoding.fraction=0.5 leaves half of each head unrotated"

    is_moved: Tensor

    def __init__(self, shape: Shape, *, numbers: Sequence[Sequence[int]]) -> None:
        super().__init__(shape)
        is_moved = torch.zeros(shape.n_layers, shape.head_dim, dtype=torch.bool)  # (L, D)
        for layer, moved in enumerate(numbers):
            is_moved[layer, list(moved)] = True
        self.register_buffer("is_moved", is_moved, persistent=False)

    @classmethod
    def for_value(cls, shape: Shape, value: Any, acting: Sequence[Encoding]) -> Self:
        return cls(shape, numbers=[moved_numbers(acting[0], layer) for layer in range(shape.n_layers)])

    @classmethod
    def misfit(cls, encoding: Encoding) -> str | None:
        if any(encoding.unrotated_numbers(layer) for layer in range(encoding.shape.n_layers)):
            return None
        return "it rotates the whole head"

    def learned_parameters(self) -> int:
        return 0

    def adjust(
        self, q: Tensor, k: Tensor, x: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int
    ) -> tuple[Tensor, Tensor]:
        before = torch.cat((k[:, :, :1], k[:, :, :-1]), dim=2)  # (B, H or 1, S, D)
        return q, torch.where(self.is_moved[layer], before, k)


def moved_numbers(encoding: Encoding, layer: int) -> list[int]:
    """Return the indices of a head's numbers that are taken from the token before."""
    width = encoding.shape.head_dim
    unrotated = encoding.unrotated_numbers(layer)
    return unrotated[width // 2 :] if len(unrotated) == width else unrotated
