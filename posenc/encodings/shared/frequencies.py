"""Changes of RoPE's frequencies that need no training length: clipped ones, whole wavelengths."""

import math

import torch
from torch import Tensor

PUBLISHED_SHARE = 20 / 64  # of a head's pairs: the released code of clipped RoPE clips so many for Llama


def pairs_to_clip(pairs: int | None, pairs_of_head: int) -> int:
    """Return how many of a head's pairs are clipped; None stands for the published share, at least 2.

    Raises ValueError for fewer than 2 pairs, since the fading needs both of its ends, or more than the head
    has.
    """
    if pairs_of_head < 2:
        raise ValueError(f"a head with {pairs_of_head} pair has none to clip")
    if pairs is None:
        return max(2, round(PUBLISHED_SHARE * pairs_of_head))
    if not 2 <= pairs <= pairs_of_head:
        raise ValueError(f"pairs={pairs}: must be in 2..{pairs_of_head}, the pairs of a head")
    return pairs


def clipped(theta: Tensor, pairs: int, *, hard: bool) -> Tensor:
    """Return theta (n,), highest first, whose `pairs` lowest are faded out by a cosine, or zero if `hard`.

    The highest of the clipped frequencies stays as it is, and the lowest becomes zero.
    """
    i = torch.arange(pairs, dtype=theta.dtype, device=theta.device)
    factor = torch.zeros_like(i) if hard else 0.5 * (1 + torch.cos(math.pi * i / (pairs - 1)))
    changed = theta.clone()
    changed[-pairs:] *= factor
    if not hard:
        changed[-1] = 0.0  # exactly: cos(pi) is -1 only up to rounding, and the pair would turn very slowly
    return changed


def with_whole_wavelengths(theta: Tensor) -> Tensor:
    """Return theta whose wavelengths 2 pi / theta, in tokens, are rounded; zero stays zero."""
    wavelength = torch.round(2 * math.pi / theta)  # inf where theta is 0
    return 2 * math.pi / wavelength
