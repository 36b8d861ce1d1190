"""A window: keys at a distance of W or more are not seen. The honest control for every recency bias.

Formula: key j is visible to query i where i - j < W, so W keys with the token itself.
Paper: Beltagy, Peters, Cohan 2020 (Longformer), arXiv 2004.05150.
"""

from __future__ import annotations

from torch import Tensor

from posenc.encodings.base import Encoding, Shape


class Window(Encoding):
    """The last `window` positions, in every layer."""

    name = "window"
    acts_on = "mask"
    relative = True

    def __init__(self, shape: Shape, *, window: int) -> None:
        super().__init__(shape)
        if window < 1:
            raise ValueError(f"window={window}: must be at least 1")
        self.window = window

    def visible(self, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        return q_pos[:, None] - k_pos[None, :] < self.window  # (T, S)
