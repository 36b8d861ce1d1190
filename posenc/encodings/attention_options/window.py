"""A window: a query sees W keys, its own and the W - 1 before it.

Formula: key j is visible to query i if i - j < W.
Setting: `attention.window=W`.
The test-time extension `sinks` builds this class with `first`, the number of keys at the beginning of the
text that every query sees as well.
Paper: Beltagy, Peters, Cohan 2020 (Longformer), arXiv 2004.05150.
"""

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from posenc.encodings.attention_options.base import AttentionOption
from posenc.encodings.base import Encoding, Shape, check_at_least


class Window(AttentionOption):
    """Hide all keys but those at the last `window` positions, in every layer."""

    name = "window"
    key = "window"
    choice = int
    acts_on = "mask"

    def __init__(self, shape: Shape, *, window: int, first: int = 0) -> None:
        super().__init__(shape)
        check_at_least(1, window=window)
        self.window = window
        self.first = first

    @classmethod
    def for_value(cls, shape: Shape, value: Any, acting: Sequence[Encoding]) -> Self:
        return cls(shape, window=value)

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        # By position and not by index, so that the window covers the distances that it names if there are
        # gaps.
        is_near = q_pos[:, None] - k_pos[None, :] < self.window  # (T, S)
        if not self.first:
            return is_near
        # by index, since drawn positions need not begin at 0
        is_first = torch.arange(len(k_pos), device=k_pos.device) < self.first  # (S,)
        return is_near | is_first
