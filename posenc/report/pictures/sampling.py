"""Choose the positions, distances and heads that are measured: few enough at any training length."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding
from posenc.report.pictures.panels import Numbers

FAR = 8  # pictures go to this many times T
MOST_POINTS = 1024
MOST_ROWS = 256
MOST_LINES = 6  # told apart in a panel

POSITION = "position in tokens"
DISTANCE = "distance r in tokens"


def array(x: Tensor) -> Numbers:
    """Convert to float64 on the CPU."""
    return x.detach().double().cpu().numpy()


def chance(name: str, number: int = 0) -> torch.Generator:
    """Return a fixed source of random inputs, so that a picture is the same every time."""
    return generator_for(0, "picture", name, number)


def steps(end: int, most: int = MOST_POINTS) -> Tensor:
    """Return 0..end, all of them or `most` at even steps: (n,) int64."""
    return torch.linspace(0, end, min(end + 1, most), dtype=torch.float64).round().long()


def distances(end: int, most: int = MOST_POINTS) -> Tensor:
    """Return 0..end, or dense where a logarithmic axis is wide: (n,) int64."""
    if end < most:
        return torch.arange(end + 1)
    far = torch.logspace(np.log10(most // 2), np.log10(end), most // 2, dtype=torch.float64).round().long()
    return torch.cat((torch.arange(most // 2), far, torch.tensor([end]))).clamp_max(end).unique()


def some(count: int, most: int = MOST_LINES) -> list[int]:
    """Return indices below count, all or `most` of them from first to last."""
    return steps(count - 1, most).tolist()


def marks(encoding: Encoding, *, far: bool = True) -> dict[str, float]:
    """Return where T and 8T are."""
    length = encoding.shape.train_length
    return {"T": float(length), **({f"{FAR}T": float(FAR * length)} if far else {})}


def multiple(n: int, length: int) -> str:
    """Write `4T` for a multiple of T, `T/4` for a part of it, else the number."""
    if n and n % length == 0:
        return "T" if n == length else f"{n // length}T"
    return f"T/{length // n}" if n and length % n == 0 else str(n)
