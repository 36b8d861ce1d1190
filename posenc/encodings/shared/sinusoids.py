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
    # One power in float64 and no running product, whose error would grow with k.
    return base ** (-twice_k / width)


def sines_and_cosines(angle: Tensor) -> Tensor:
    """Interleave sines (even columns) and cosines (odd ones) of angles, (T, n) -> (T, 2n)."""
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


def sinusoids(pos: Tensor, width: int, base: float) -> Tensor:
    """Return the sinusoids of positions, (n,) int64 -> (n, width) float32, sines on even columns.

    Angles are float64: at position 65 536 a float32 product is off by up to 0.004 radians.
    """
    pos64 = float64(pos)[:, None]  # (n, 1)
    angle = pos64 * sinusoid_frequencies(width, base, pos64.device)  # (n, ceil(width/2))
    return sines_and_cosines(angle)[:, :width].float().to(pos.device)  # (n, width)


def cos_sin(pos: Tensor, frequencies: Callable[[torch.device], Tensor]) -> tuple[Tensor, Tensor]:
    """Return cos and sin of pos * theta for (T,) positions and n frequencies: (T, n) float32 each.

    The product is float64: in float32 it is off by up to 0.004 radians at position 65 536. Apple's MPS has no
    float64, so the device is chosen here, and `frequencies(device)` returns theta (n,) on it.
    """
    pos64 = float64(pos)  # (T,)
    theta = frequencies(pos64.device)  # (n,)
    # torch.compile would compute cos and sin again in float64 for every head and window: 6.4 of the 32.8 ms
    # of a step on an H100. It does not look into a custom operator, so they are made in one. That operator
    # has no gradient, so learned angles do without it.
    is_learned = pos64.requires_grad or theta.requires_grad
    if torch.compiler.is_compiling() and not is_learned:
        cos, sin = _cos_sin_operator(pos64, theta)
    else:
        cos, sin = _cos_sin_of_angles(pos64, theta)
    return cos.to(pos.device), sin.to(pos.device)


def _cos_sin_of_angles(pos: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin of pos (T,) * theta (n,), float64 both: (T, n) float32 each."""
    angle = pos[:, None] * theta  # (T, n)
    return angle.cos().float(), angle.sin().float()


@torch.library.custom_op("posenc::cos_sin", mutates_args=())
def _cos_sin_operator(pos: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `_cos_sin_of_angles` does, without gradients."""
    return _cos_sin_of_angles(pos, theta)


@_cos_sin_operator.register_fake
def _(pos: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """Tell the compiler the shapes and dtype of what the operator returns."""
    size = (len(pos), len(theta))
    cos = torch.empty(size, device=pos.device)
    return cos, torch.empty_like(cos)
