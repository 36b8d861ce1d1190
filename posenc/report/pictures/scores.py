"""Measure what happens to the scores: biases, hidden keys, and where attention goes on random inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.sum import Composed
from posenc.model.kernels import attend
from posenc.report.pictures.panels import Curves, Line, Map, Numbers, Panel
from posenc.report.pictures.sampling import (
    DISTANCE,
    FAR,
    MOST_ROWS,
    array,
    chance,
    distances,
    marks,
    multiple,
    some,
    steps,
)

ADDED = "added to the score (nats)"
WEIGHT = "mean attention weight"
DRAWS = 32  # random windows
QUERIES = 16  # of each window, the last ones
MOST_KEYS = 4096


def _matrix(title: str, unit: str, z: Tensor, pos: Tensor, **look: Any) -> Map:
    """Draw (T, T) values of queries and keys at `pos`, those of later keys left out."""
    shown = array(z.double().masked_fill(pos[:, None] < pos[None, :], torch.nan))
    at = array(pos)
    return Map(title, "key position in tokens", "query position", unit, shown, at, at, matrix=True, **look)


# Biases


def bias_panels(encoding: Encoding, most: int) -> list[Panel]:
    """Draw curves of `most` heads in the first and, where it differs, the last layer; two matrices."""
    length, layers = encoding.shape.train_length, encoding.shape.n_layers
    end = FAR * length
    r = distances(end)
    tables = [_bias_of_query(encoding, end, r, layer) for layer in (0, layers - 1)]
    differ = not np.allclose(tables[0], tables[1], rtol=1e-5, atol=1e-6)
    by_query = "bias" in encoding.hooks
    panels: list[Panel] = []
    for layer, table in zip((0, layers - 1), tables if differ else tables[:1], strict=False):
        chosen = some(len(table), most)
        who = "each head" if len(chosen) == len(table) else f"{len(chosen)} of {len(table)} heads"
        title = "Bias" + (f" at i = {multiple(end, length)}" if by_query else "")
        title += f", layer {layer + 1}, {who}" if differ else f", {who}"
        lines = [Line(f"head {h + 1}", array(r), table[h]) for h in chosen]
        if not table.any():
            title, lines = f"{title}: all zero", [Line("every head", array(r), table[0])]
        here = marks(encoding)
        panels.append(Curves(title, DISTANCE, ADDED, lines, "symlog", marks=here, brief=layer == 0))
    if by_query:
        panels.append(_by_query(encoding))
    if not any(table.any() for table in tables):
        return panels[:1]
    pos = steps(length - 1, MOST_ROWS)
    matrix = encoding.bias(pos, pos, 0)  # (H, n, n)
    for h in sorted({0, len(matrix) - 1}):
        where = f", layer 1, head {h + 1}" if differ else f", head {h + 1}"
        panels.append(_matrix(f"Bias as a matrix{where}", ADDED, matrix[h], pos))
    return panels


def _bias_of_query(encoding: Encoding, i: int, r: Tensor, layer: int) -> Numbers:
    """Return the bias of a query at position i at the increasing distances r: (H, R)."""
    if "bias" not in encoding.hooks:
        return array(encoding.distance_bias(r, layer))
    keys = (i - r).flip(0)  # increasing
    return array(encoding.bias(torch.tensor([i]), keys, layer)[:, 0].flip(-1))


def _by_query(encoding: Encoding) -> Curves:
    """Draw the same head for queries at several positions: the bias is no function of the distance alone."""
    length = encoding.shape.train_length
    lines = []
    for i in (max(1, length // 4), length, 2 * length, 4 * length, FAR * length):
        r = distances(i)
        lines.append(Line(f"i = {multiple(i, length)}", array(r), _bias_of_query(encoding, i, r, 0)[0]))
    title = "Head 1 for queries at several positions i"
    return Curves(title, DISTANCE, ADDED, lines, "symlog", marks=marks(encoding), ordered=True)


# Masks


def mask_panels(encoding: Encoding) -> list[Panel]:
    """Draw who sees whom, one matrix for each group of layers that agree; at most three."""
    pos = steps(encoding.shape.train_length - 1, MOST_ROWS)
    causal = pos[:, None] >= pos[None, :]
    groups: dict[bytes, list[int]] = {}
    masks = [encoding.visible(pos, pos, layer) & causal for layer in range(encoding.shape.n_layers)]
    for layer, seen in enumerate(masks):
        groups.setdefault(seen.numpy().tobytes(), []).append(layer)
    panels: list[Panel] = []
    for layers in list(groups.values())[:3]:
        named = ", ".join(str(layer + 1) for layer in layers[:6]) + (", ..." if len(layers) > 6 else "")
        who = "every layer" if len(groups) == 1 else f"layer {named}"
        look = {"binary": True, "brief": layers[0] == 0}
        panels.append(_matrix(f"Keys seen in {who}", "", masks[layers[0]], pos, **look))
    return panels


# The real attention on random inputs


class Recorder(Composed):
    """Watch an encoding in the attention: keep what it changes of the scores, and the weights."""

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
    """Return weights (H, T, S) of random inputs, numbers of unit variance, and what the scores changed by.

    The last T = `queries` of S = `keys` tokens ask. None: the same attention without encoding.
    """
    generator = chance("attention", draw)
    x = torch.randn(1, keys, shape.d_model, generator=generator)
    q, k = torch.randn(2, 1, shape.n_heads, keys, shape.head_dim, generator=generator)
    recorder = Recorder(shape, () if encoding is None else (encoding,))
    attend(q[:, :, -queries:], k, torch.zeros_like(k), x, torch.arange(keys), recorder, layer)

    def whole(blocks: list[Tensor]) -> Tensor:
        """Put blocks (1, H, T', S') together, with zeros for the keys after them."""
        padded = [F.pad(one.expand(*one.shape[:3], -1), (0, keys - one.shape[-1])) for one in blocks]
        return torch.cat(padded[::-1], dim=2)[0]

    return whole(recorder.kept), whole(recorder.changes) if recorder.changes else None


def by_distance(matrix: Tensor) -> Tensor:
    """Order each query's row of (H, T, S), the last T of S tokens, by distance: (T, H, R), R = S - T + 1."""
    queries, keys = matrix.shape[-2:]
    r = keys - queries + 1
    return torch.stack([matrix[:, i, : r + i].flip(-1)[:, :r] for i in range(queries)])


def mean_weights(encoding: Encoding | None, shape: Shape, keys: int) -> Numbers:
    """Return the weight that a query gives to distance r, mean over random inputs: (H, R).

    Of several queries of a window, the middle one of which sees `keys` keys.
    """
    queries = _asking(keys)
    window = keys + queries // 2
    draws = [by_distance(attention(encoding, shape, window, queries, i)[0]) for i in range(DRAWS)]
    return array(torch.cat(draws).double().mean(0))


def _asking(keys: int) -> int:
    """Return how many queries of a window are averaged: few beside the keys that they see."""
    return min(QUERIES, max(1, keys // 4))


def weight_panels(encoding: Encoding) -> list[Panel]:
    """Draw where attention goes on random inputs: by head, by length, and one example."""
    shape, length = encoding.shape, encoding.shape.train_length
    panels: list[Panel] = []
    if "scores" in encoding.hooks:
        first, last = _change(encoding, 0), _change(encoding, shape.n_layers - 1)
        differ = any(not np.allclose(a.y, b.y) for a, b in zip(first.lines, last.lines, strict=True))
        panels += [first, last] if differ else [first]
    keys = min(length, MOST_KEYS)
    table = mean_weights(encoding, shape, keys)
    without = mean_weights(None, shape, keys).mean(0)
    r = np.arange(table.shape[1], dtype=np.float64)
    lines = [Line(f"head {h + 1}", r, _smooth(table[h])) for h in some(len(table), 4)]
    lines.append(Line("without encoding", r, _smooth(without), reference=True))
    title = f"Attention of random inputs to n = {multiple(keys, length)} keys"
    panels.append(Curves(title, DISTANCE, WEIGHT, lines, "symlog", "log", brief=True))
    panels.append(length_panel(encoding, "The same to n keys, mean of the heads"))
    rows = min(length, MOST_ROWS)
    weights, change = attention(encoding, shape, rows, rows, 0)
    at = torch.arange(rows)
    if change is not None:
        title = "Change of the scores, one example, head 1"
        panels.append(_matrix(title, "change of the score (nats)", change[0], at))
    title = "Attention weights, one example, head 1"
    panels.append(_matrix(title, "attention weight", weights[0], at, log=True))
    return panels


def _change(encoding: Encoding, layer: int) -> Curves:
    """Draw what the `scores` hook makes of the score at distance r: mean over inputs, spread for head 1."""
    shape, length = encoding.shape, encoding.shape.train_length
    keys = min(2 * length, MOST_KEYS)
    changes = []
    for i in range(DRAWS):
        _, change = attention(encoding, shape, keys, _asking(keys), i, layer)
        assert change is not None
        changes.append(by_distance(change))
    every = torch.cat(changes).double()  # (draws x queries, H, R)
    mean, spread = array(every.mean(0)), array(every.std(0))
    r = np.arange(mean.shape[1], dtype=np.float64)
    lines = [Line("head 1", r, mean[0], mean[0] - spread[0], mean[0] + spread[0])]
    lines += [Line(f"head {h + 1}", r, mean[h]) for h in some(len(mean), 4)[1:]]
    title = f"Change of the scores, layer {layer + 1} (± sd: head 1)"
    return Curves(title, DISTANCE, ADDED, lines, "symlog", "linear", marks(encoding, far=False), {"": 0.0})


def length_panel(encoding: Encoding, title: str) -> Curves:
    """Draw the mean over heads for windows of several lengths."""
    length = encoding.shape.train_length
    lines = []
    for keys in _lengths(length):
        y = _smooth(mean_weights(encoding, encoding.shape, keys).mean(0))
        lines.append(Line(f"n = {multiple(keys, length)}", np.arange(len(y), dtype=np.float64), y))
    here = marks(encoding)
    return Curves(title, DISTANCE, WEIGHT, lines, "symlog", "log", here, ordered=True, brief=True)


def _lengths(length: int) -> list[int]:
    """Return windows to compare: up to 8T, or as long as can be afforded."""
    return sorted({min(times * length, MOST_KEYS) for times in (1, 2, 4, FAR)})


def _smooth(y: Numbers) -> Numbers:
    """Average neighbours up to a twentieth of the distance away, against the noise of the inputs."""
    total = np.concatenate(([0.0], np.cumsum(y)))
    at = np.arange(len(y))
    low, high = np.maximum(at - at // 20, 0), np.minimum(at + at // 20 + 1, len(y))
    smooth: Numbers = (total[high] - total[low]) / (high - low)
    return smooth
