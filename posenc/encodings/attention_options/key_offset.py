"""Key offset: a part of each key comes from the token before. One layer can then find what followed a token.

Formula: k_t[c] <- k_(t-1)[c] for some of the numbers c of a head.
  c  the numbers that the encoding leaves unrotated; if it rotates nothing, the second half of the head
The first token keeps its own key. Nothing is learned.
Setting: `attention.key_offset=true`.
Source: record 49 of modded-nanogpt (partial key offset).
Departure: every layer with unrotated numbers has it. There only the layers with long windows have it.
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from posenc.encodings.attention_options.base import AttentionOption
from posenc.encodings.base import Encoding, Shape


class KeyOffset(AttentionOption):
    """Replace the unrotated part of each key by that of the token before."""

    name = "key_offset"
    key = "key_offset"
    choice = bool
    off = False
    acts_on = "keys"
    uses_positions = False
    misfit_of_latents = "its heads have a rotary part of their own"
    hint_at_misfit = "encoding=rope encoding.fraction=0.5 leaves half of each head unrotated"

    is_moved: Tensor

    def __init__(self, shape: Shape, *, moved: Sequence[Sequence[int]]) -> None:
        """Build the option; `moved` holds the indices of a head's moved numbers for each layer."""
        super().__init__(shape)
        is_moved = torch.zeros(shape.n_layers, shape.head_dim, dtype=torch.bool)  # (L, D)
        for layer, moved_in_layer in enumerate(moved):
            is_moved[layer, list(moved_in_layer)] = True
        # It follows from the encoding, so no checkpoint needs it.
        self.register_buffer("is_moved", is_moved, persistent=False)

    @classmethod
    def for_value(cls, shape: Shape, value: Any, acting: Sequence[Encoding]) -> Self:
        encoding = acting[0]  # the options follow it
        return cls(shape, moved=[moved_numbers(encoding, layer) for layer in range(shape.n_layers)])

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
        # The first token keeps its own key: a zero in its place would be a key that no text has.
        previous_key = torch.cat((k[:, :, :1], k[:, :, :-1]), dim=2)  # (B, H or 1, S, D)
        return q, torch.where(self.is_moved[layer], previous_key, k)


def moved_numbers(encoding: Encoding, layer: int) -> list[int]:
    """Return the indices of a head's numbers that are taken from the token before."""
    width = encoding.shape.head_dim
    unrotated = encoding.unrotated_numbers(layer)
    rotates_nothing = len(unrotated) == width
    # With the whole key moved, a query could no longer look for what its key's own token is.
    return unrotated[width // 2 :] if rotates_nothing else unrotated
