"""The biases by distance once more, by another route than the code's: plain numbers, a distance at a time.

Below them: an encoding as it starts, and its parameters as plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding

Vector = Sequence[float]


def softplus(raw: float) -> float:
    return max(raw, 0.0) + math.log1p(math.exp(-abs(raw)))


def sigmoid(raw: float) -> float:
    return 1 / (1 + math.exp(-raw))


def kerple_log(r: int, a: float, b: float) -> float:
    return -a * math.log(1 + b * r)


def kerple_power(r: int, a: float, b: float) -> float:
    return -a * math.pow(r, b)


def sandwich(r: int, head: int, heads: int, width: int = 128, base: float = 10000.0) -> float:
    """Head 1..H: the inner product of two sinusoidal positions r apart, divided by 8 head / H."""
    total = math.fsum(math.cos(r / math.pow(base, 2 * k / width)) for k in range(width // 2))
    return total / (8 * head / heads)


@dataclass(frozen=True)
class Network:
    """One input, layers of ReLUs, a linear output for each head: (weights, offsets) of each layer."""

    layers: Sequence[tuple[Sequence[Vector], Vector]]

    def __call__(self, u: float) -> list[float]:
        x = [u]
        for n, (weights, offsets) in enumerate(self.layers):
            x = [
                math.fsum(w * value for w, value in zip(row, x, strict=True)) + offset
                for row, offset in zip(weights, offsets, strict=True)
            ]
            if n < len(self.layers) - 1:
                x = [max(value, 0.0) for value in x]
        return x


def fire_share(i: int, j: int, c: float, threshold: float) -> float:
    """psi(i - j) / psi(max(i, threshold))."""
    return math.log(c * (i - j) + 1) / math.log(c * max(i, threshold) + 1)


def started(
    name: str, heads: int = 4, layers: int = 2, train_length: int = 64, seed: int = 0, **params: Any
) -> Encoding:
    """With its parameters as they start."""
    sizes: dict[str, Any] = {"d_model": 8 * heads, "n_heads": heads, "head_dim": 8, "n_layers": layers}
    encoding = build_encoding(name, train_length=train_length, **sizes, **params)
    with torch.no_grad():
        for n, (key, parameter) in enumerate(encoding.named_parameters()):
            encoding.initialize(key, parameter, torch.Generator().manual_seed(100 * seed + n))
    return encoding


def spread(encoding: Encoding, size: float = 1.0, seed: int = 1) -> None:
    """Fills every parameter with large numbers: those of a start would hide faults."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=size, generator=generator)


def network(w1: Tensor, b1: Tensor, *later: Tensor) -> Network:
    """w1 (K,), b1 (K,), then weights (out, in) and offsets (out,) of each layer."""
    rest = list(zip(later[::2], later[1::2], strict=True))
    return Network([(w.double().tolist(), b.double().tolist()) for w, b in ((w1[:, None], b1), *rest)])


def largest(a: Tensor, b: Tensor) -> float:
    return (a.detach().double() - b.detach().double()).abs().max().item()
