"""Change RoPE's frequencies: fade the lowest ones out, or round their wavelengths to whole tokens."""

import math

import torch
from torch import Tensor

PUBLISHED_SHARE = 20 / 64  # of a head's pairs: what the released code of clipped RoPE clips of Llama's


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
    """Fade out the `pairs` lowest of the frequencies theta (n,), highest first, by half a period of a cosine.

    The highest of them stays as it is, and the lowest becomes zero. If `hard`, all of them become zero.
    """
    i = torch.arange(pairs, dtype=theta.dtype, device=theta.device)
    factor = torch.zeros_like(i) if hard else 0.5 * (1 + torch.cos(math.pi * i / (pairs - 1)))
    # A copy, since the caller's frequencies may be those of the trained model.
    changed = theta.clone()
    changed[-pairs:] *= factor
    if not hard:
        changed[-1] = 0.0  # the factor is 0 only up to rounding, and the pair would turn very slowly
    return changed


def with_whole_wavelengths(theta: Tensor) -> Tensor:
    """Round the wavelengths 2 pi / theta of frequencies theta (n,) to whole tokens; a zero stays zero."""
    wavelength = torch.round(2 * math.pi / theta)  # inf where theta is 0
    return 2 * math.pi / wavelength
