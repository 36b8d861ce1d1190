"""Helpers of encodings that change scores block by block of queries: rows of a block, sums along its keys."""

from torch import Tensor


def rows_of_block(prepared: Tensor, window: int, s: Tensor) -> Tensor:
    """Select the rows of `prepared` (B, H, queries, ...) that belong to a block with scores s (B, H, T, S).

    `prepared` holds the last queries of a window of `window` tokens; s the last T of its first S.
    """
    queries, keys = s.shape[-2:]
    stop = prepared.shape[2] - window + keys
    return prepared[:, :, stop - queries : stop]  # (B, H, T, ...)


def reversed_cumsum(x: Tensor) -> Tensor:
    """Sum each entry and all later ones of the last dimension.

    It adds from the end, so that a sum near the end is as exact as its few terms. Total minus cumsum is not.
    """
    return x.flip(-1).cumsum(-1).flip(-1)
