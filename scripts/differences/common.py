"""What the comparisons share: sizes, positions, the largest difference."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.encodings import build_encoding
from posenc.encodings.base import Encoding

HEAD_DIM, BASE = 64, 10000.0
FORMULA = "formula, float64, positions to 65536"
SHORT = torch.arange(512)  # the libraries make their angles in float32, which drifts with the position
LONG = torch.tensor([0, 1, 2, 63, 64, 255, 256, 257, 1000, 4096, 8191, 65536])


def encoding(name: str, heads: int = 8, **params: object) -> Encoding:
    sizes = {"d_model": heads * HEAD_DIM, "n_heads": heads, "head_dim": HEAD_DIM, "n_layers": 1}
    return build_encoding(name, train_length=128, **sizes, **params)


def largest(ours: Tensor, theirs: Tensor) -> float:
    """Largest absolute difference, in float64."""
    return (ours.double() - theirs.double()).abs().max().item()


def vectors(n: int) -> Tensor:
    """(1, 1, n, D), the same every time."""
    return torch.randn(1, 1, n, HEAD_DIM, generator=torch.Generator().manual_seed(0))
