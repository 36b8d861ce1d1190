"""Changes of RoPE's frequencies that need no training length: clipped ones, whole wavelengths."""

import math

import torch
from torch import Tensor

PUBLISHED_SHARE = 20 / 64  # of a head's pairs: those that CoPE's released code clips of Llama's


def pairs_to_clip(pairs: int | None, of: int) -> int:
    """Return how many of a head's pairs are clipped; None stands for the published share, 2 at least.

    Raises ValueError for fewer than 2, or more than there are.
    """
    if of < 2:
        raise ValueError(f"a head with {of} pair has none to clip")
    if pairs is None:
        return max(2, round(PUBLISHED_SHARE * of))
    if not 2 <= pairs <= of:
        raise ValueError(f"pairs={pairs}: must be in 2..{of}, the pairs of a head")
    return pairs


def clipped(theta: Tensor, pairs: int, *, hard: bool) -> Tensor:
    """Return theta (n,), highest first, with the lowest ones faded out by a cosine, or all zero if `hard`.

    Of the clipped ones the highest keeps its frequency and the lowest gets none.
    """
    number = torch.arange(pairs, dtype=theta.dtype, device=theta.device)
    fading = torch.zeros_like(number) if hard else 0.5 * (1 + torch.cos(math.pi * number / (pairs - 1)))
    changed = theta.clone()
    changed[-pairs:] *= fading
    if not hard:
        changed[-1] = 0.0  # cos(pi) is -1 only up to rounding, and a frequency near zero is none
    return changed


def with_whole_wavelengths(theta: Tensor) -> Tensor:
    """Return theta whose wavelengths 2 pi / theta, in tokens, are rounded; zero stays zero."""
    wavelength = torch.round(2 * math.pi / theta)  # inf where theta is 0
    return 2 * math.pi / wavelength
