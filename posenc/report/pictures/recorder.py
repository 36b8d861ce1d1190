"""The real attention on random inputs, watched: its weights, and what happens to its scores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.sum import Composed
from posenc.model.kernels import attend
from posenc.report.pictures.panels import Numbers
from posenc.report.pictures.sampling import array, chance

DRAWS = 32  # random windows
QUERIES = 16  # of each window, the last ones


class Recorder(Composed):
    """An encoding watched by the attention: keeps the change of the scores, and the weights."""

    def __init__(self, shape: Shape, parts: Sequence[Encoding]) -> None:
        super().__init__(shape, parts)
        self.changes: list[Tensor] = []  # by block of queries, the last block first
        self.kept: list[Tensor] = []

    @cached_property
    def hooks(self) -> frozenset[str]:
        return super().hooks | {"values"}

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        changed = super().scores(s.clone(), q, k, q_pos, k_pos, state, layer)
        if "scores" in self.hooks:
            self.changes.append(changed - s)
        return changed

    def values(self, p: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        self.kept.append(p)
        return p @ v


def attention(
    encoding: Encoding | None, shape: Shape, keys: int, queries: int, draw: int, layer: int = 0
) -> tuple[Tensor, Tensor | None]:
    """Weights (H, T, S) of random inputs, numbers of unit variance, and what the scores changed by.

    The last T = `queries` of S = `keys` tokens ask. None: the same attention without encoding.
    """
    generator = chance("attention", draw)
    x = torch.randn(1, keys, shape.d_model, generator=generator)
    q, k = torch.randn(2, 1, shape.n_heads, keys, shape.head_dim, generator=generator)
    recorder = Recorder(shape, () if encoding is None else (encoding,))
    attend(q[:, :, -queries:], k, torch.zeros_like(k), x, torch.arange(keys), recorder, layer)
    weights = torch.cat([_padded(p, keys) for p in reversed(recorder.kept)], dim=2)[0]
    if not recorder.changes:
        return weights, None
    return weights, torch.cat([_padded(c, keys) for c in reversed(recorder.changes)], dim=2)[0]


def _padded(block: Tensor, keys: int) -> Tensor:
    """A block (1, H, T, S') with zeros for the keys after it."""
    return F.pad(block.expand(*block.shape[:3], -1), (0, keys - block.shape[-1]))


def by_distance(matrix: Tensor) -> Tensor:
    """Each query's row of (H, T, S), the last T of S tokens, by distance: (T, H, R), R = S - T + 1."""
    queries, keys = matrix.shape[-2:]
    r = keys - queries + 1
    rows = [matrix[:, i, : keys - queries + i + 1].flip(-1)[:, :r] for i in range(queries)]
    return torch.stack(rows)


def mean_weights(encoding: Encoding | None, shape: Shape, keys: int, layer: int = 0) -> Numbers:
    """The weight that a query gives to distance r, mean over random inputs: (H, R).

    Of several queries of a window, the middle one of which sees `keys` keys.
    """
    queries = asking(keys)
    window = keys + queries // 2
    draws = [by_distance(attention(encoding, shape, window, queries, i, layer)[0]) for i in range(DRAWS)]
    return array(torch.cat(draws).double().mean(0))


def asking(keys: int) -> int:
    """How many queries of a window are averaged: few beside the keys that they see."""
    return min(QUERIES, max(1, keys // 4))
