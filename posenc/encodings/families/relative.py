"""What encodings share whose scores come from the layer's own queries, made once a layer in `prepare`."""

from __future__ import annotations

from torch import Tensor


def of_block(prepared: Tensor, window: int, s: Tensor) -> Tensor:
    """Rows of `prepared` (B, H, queries, ...) for the queries of a block with the scores s (B, H, T, S).

    `prepared` belongs to the last queries of a window of `window` tokens, s to the last T of its first S.
    """
    queries, keys = s.shape[-2:]
    stop = prepared.shape[2] - window + keys
    return prepared[:, :, stop - queries : stop]  # (B, H, T, ...)
