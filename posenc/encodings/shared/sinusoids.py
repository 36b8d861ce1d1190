"""Frequencies that follow from a base, and sines and cosines of positions."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from posenc.encodings.base import float64


def check_base(base: float) -> None:
    """Raise ValueError for a base of wavelengths that is not a finite number above 1."""
    if not 1 < base < math.inf:
        raise ValueError(f"base={base}: must be a finite number above 1")


def check_even_width(d_model: int) -> None:
    """Raise ValueError for an odd model width, in which the last sine has no cosine."""
    if d_model % 2:
        raise ValueError(f"d_model={d_model}: must be even, sines and cosines come in pairs")


def sinusoid_frequencies(width: int, base: float, device: torch.device | None = None) -> Tensor:
    """Return base^(-2k/width) in radians a token, highest first: (ceil(width/2),) float64."""
    twice_k = torch.arange(0, width, 2, dtype=torch.float64, device=device)
    return base ** (-twice_k / width)


def sines_and_cosines(angle: Tensor) -> Tensor:
    """Interleave sines (even columns) and cosines (odd ones) of angles, (T, n) -> (T, 2n)."""
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


def sinusoids(pos: Tensor, width: int, base: float) -> Tensor:
    """Return the sinusoids of positions, (n,) int64 -> (n, width) float32, sines on even columns.

    Angles are float64: at position 65 536 a float32 product is off by up to 0.004 radians.
    """
    exact = float64(pos)[:, None]  # (n, 1)
    angle = exact * sinusoid_frequencies(width, base, exact.device)  # (n, ceil(width/2))
    return sines_and_cosines(angle)[:, :width].float().to(pos.device)  # (n, width)


def cos_sin(pos: Tensor, frequencies: Callable[[torch.device], Tensor]) -> tuple[Tensor, Tensor]:
    """Return cos and sin of pos * theta for (T,) positions and n frequencies: (T, n) float32 each.

    The product is float64: in float32 it is off by up to 0.004 radians at position 65 536.
    """
    exact = float64(pos)  # (T,)
    theta = frequencies(exact.device)  # (n,)
    # A compiler would compute them again in float64 for every head and window, which took a seventh of a step
    # on a GPU. An operator it leaves alone.
    is_fixed = not (exact.requires_grad or theta.requires_grad)
    make = opaque_cos_sin_of if is_fixed and torch.compiler.is_compiling() else cos_sin_of
    cos, sin = make(exact, theta)
    return cos.to(pos.device), sin.to(pos.device)


def cos_sin_of(pos: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin of pos (T,) * theta (n,), float64 both: (T, n) float32 each."""
    angle = pos[:, None] * theta  # (T, n)
    return angle.cos().float(), angle.sin().float()


@torch.library.custom_op("posenc::cos_sin", mutates_args=())
def opaque_cos_sin_of(pos: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `cos_sin_of` does, without gradients."""
    return cos_sin_of(pos, theta)


@opaque_cos_sin_of.register_fake
def _(pos: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    size = (len(pos), len(theta))
    cos = torch.empty(size, device=pos.device)
    return cos, torch.empty_like(cos)
