"""Rotary encodings: pairs of components of queries and keys, rotated by angles that grow with position."""

import copy
import math
from collections.abc import Callable
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.shared.sinusoids import check_base, cos_sin, sinusoid_frequencies

# Which components of a head make a pair: (2k, 2k+1), or (k, k + D'/2). D' is the rotated width.
Layout = Literal["interleaved", "half"]
# A function from the trained frequencies to those that act, (n,) float64 each.
FrequencyChange = Callable[[Tensor], Tensor]

# How far a fraction of a head may be from a whole number, so that a third may be written as 0.333333.
ROUNDED_OFF = 0.01


def check_pairs(shape: Shape) -> None:
    """Raise ValueError for an odd head width, which is not made of pairs."""
    if shape.head_dim % 2:
        sizes = f"model.n_heads={shape.n_heads} and model.d_model={shape.d_model}"
        raise ValueError(f"needs an even head_dim, and {sizes} give head_dim={shape.head_dim}")


def even_share(shape: Shape, fraction: float) -> int:
    """Return the even width that is `fraction` of the head width.

    Raises ValueError for a fraction that is no whole number of pairs.
    """
    if fraction == 1:
        check_pairs(shape)
    share = shape.head_dim * fraction
    width = 2 * round(share / 2)
    # Rounded to pairs, many fractions would be one encoding under the hashes and rows of several.
    if width == 0 or abs(share - width) > ROUNDED_OFF:
        below = 2 * math.floor(share / 2)
        neighbours = [even for even in (below, below + 2) if 0 < even <= shape.head_dim]
        nearest = " or ".join(f"{even / shape.head_dim:.6g}" for even in neighbours)
        raise ValueError(
            f"fraction={fraction}: {share:g} numbers of head_dim={shape.head_dim} are no whole pairs; "
            f"the nearest that work: {nearest}"
        )
    return width


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Rotate the pairs of x (..., T, D') by angles with this cos and sin, (T, D'/2) float32 each.

    The product is float32, and the result has the dtype of x.
    """
    # On a CPU the formula loses where it is compiled, too: a step took 1.35 times that of `nope`.
    if x.device.type == "cpu":
        return _rotate_as_complex(x.float(), torch.complex(cos, sin), layout).to(x.dtype)
    return _rotate_by_formula(x.float(), cos, sin, layout).to(x.dtype)


def _rotate_by_formula(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    """Rotate x (..., T, D') float32 by the formula. A compiler for GPUs makes one kernel of it."""
    if layout == "interleaved":
        a = x[..., 0::2]  # (..., T, D'/2)
        b = x[..., 1::2]
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def _rotate_as_complex(x: Tensor, rotation: Tensor, layout: str) -> Tensor:
    """Rotate x (..., T, D') float32 by complex products with cos + i sin, (T, D'/2) complex64.

    It takes 130 us where the formula takes 530, for 262144 components on two CPU cores.
    """
    if layout == "interleaved":
        pairs = torch.view_as_complex(x.contiguous().unflatten(-1, (-1, 2)))  # (..., T, D'/2)
        return torch.view_as_real(pairs * rotation).flatten(-2)
    a, b = x.chunk(2, dim=-1)  # (..., T, D'/2)
    rotated = torch.view_as_real(torch.complex(a, b) * rotation)  # (..., T, D'/2, 2)
    return rotated.transpose(-1, -2).flatten(-2)


class Rotary(Encoding):
    """Rotate the first `width` components of each head by pos * theta.

    A subclass may override `frequencies`, which returns the trained frequencies. A test-time extension gets a
    copy with other frequencies from `with_frequencies`.
    """

    acts_on = "rotate"
    relative = True
    keeps_lengths: ClassVar[bool] = True  # False if positions also change the lengths of pairs

    def __init__(self, shape: Shape, *, base: float, layout: Layout, width: int) -> None:
        super().__init__(shape)
        if width == shape.head_dim:
            check_pairs(shape)
        if width % 2 or not 0 < width <= shape.head_dim:
            raise ValueError(f"{width} of head_dim={shape.head_dim}: rotary pairs need an even width above 0")
        check_base(base)
        self.base = base
        self.layout = layout
        self.width = width
        # set in the copy that `with_frequencies` returns
        self.frequency_change: FrequencyChange | None = None
        self.gain = 1.0  # factor on cos and sin

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return theta_k = base^(-2k/width) in radians a token, highest first: (width/2,) float64."""
        return sinusoid_frequencies(self.width, self.base, device)

    def pair_with_turns(self, turns: float, length: int) -> float:
        """Return the real k whose frequency base^(-2k/width) makes `turns` turns in `length` tokens."""
        pairs = self.width / 2
        return pairs * math.log(length / (2 * math.pi * turns)) / math.log(self.base)

    def with_frequencies(self, change: FrequencyChange, *, gain: float = 1.0) -> Self:
        """Return a copy that shares the parameters and rotates by change(theta).

        The gains multiply: cos and sin of the copy are multiplied by `gain` times the gain of this encoding.
        """
        # Shallow: the copy acts in one evaluation and shares what the model has learned.
        copied = copy.copy(self)
        copied.frequency_change = change
        copied.gain = self.gain * gain
        return copied

    def acting_frequencies(self, device: torch.device | None = None) -> Tensor:
        """Return the frequencies that rotate: the trained ones, or what `with_frequencies` makes of them."""
        theta = self.frequencies(device)
        return theta if self.frequency_change is None else self.frequency_change(theta)

    def angles(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin of pos * theta, each (T, width/2) float32."""
        # cos_sin calls the method with the device on which it computes
        cos, sin = cos_sin(pos, self.acting_frequencies)
        if self.gain != 1:
            return cos * self.gain, sin * self.gain
        return cos, sin

    def unrotated_numbers(self, layer: int) -> list[int]:
        """Return the indices of a head's components beyond `width`, and of pairs whose frequency is zero."""
        if "rotate" not in self.hooks:
            return super().unrotated_numbers(layer)
        beyond = list(range(self.width, self.shape.head_dim))
        if not self.keeps_lengths:
            return beyond  # a pair with frequency 0 may still change its length
        # on the CPU, since the model may be built on the meta device, which has no values
        is_still = self.frequencies(torch.device("cpu")) == 0  # (width/2,)
        half = self.width // 2
        inside: list[int] = []
        for pair in is_still.nonzero().flatten().tolist():
            if self.layout == "interleaved":
                inside += [2 * pair, 2 * pair + 1]
            else:
                inside += [pair, half + pair]
        return sorted(inside) + beyond

    def rotate(self, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        k_angles = self.angles(k_pos)  # cos and sin, (S, width/2) each
        # In training queries and keys are the same tokens: their angles are computed once.
        q_angles = k_angles if q_pos is k_pos else self.angles(q_pos)  # (T, width/2) each
        return self.rotate_width(q, *q_angles), self.rotate_width(k, *k_angles)

    def rotate_width(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate the first `width` components of x (..., T, D) by cos and sin, (T, width/2) each."""
        # MPS has no float64, so there cos and sin of fractional positions come from the CPU.
        cos = cos.to(x.device)
        sin = sin.to(x.device)
        if self.width == x.shape[-1]:
            return rotate_pairs(x, cos, sin, self.layout)
        # The rest is only copied: to turn it by 0 would take as long as to turn it.
        rotated = rotate_pairs(x[..., : self.width], cos, sin, self.layout)
        return torch.cat((rotated, x[..., self.width :]), dim=-1)
