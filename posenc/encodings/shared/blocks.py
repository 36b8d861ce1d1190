"""Helpers of encodings that change scores block by block of queries: rows of a block, sums along its keys."""

from torch import Tensor


def rows_of_block(prepared: Tensor, window: int, s: Tensor) -> Tensor:
    """Select the rows of `prepared` (B, H, rows, ...) that belong to a block with scores s (B, H, T, S).

    `prepared` has a row for each query of the layer, and these are the last tokens of a window of `window`
    tokens. The T queries of the block are the last ones of the window's first S tokens.
    """
    queries, keys = s.shape[-2:]
    tokens_without_row = window - prepared.shape[2]
    stop = keys - tokens_without_row
    return prepared[:, :, stop - queries : stop]  # (B, H, T, ...)


def reversed_cumsum(x: Tensor) -> Tensor:
    """Sum each entry and all later ones of the last dimension.

    It adds from the end, so that a sum of the last few entries has the rounding error of few terms. The total
    minus `cumsum` would have that of all.
    """
    return x.flip(-1).cumsum(-1).flip(-1)
