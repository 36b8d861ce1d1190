"""Attention weights of random inputs: over the distance, by head and by length, and one example."""

from __future__ import annotations

import numpy as np
import torch

from posenc.encodings.base import Encoding
from posenc.report.pictures.bias import ADDED
from posenc.report.pictures.panels import Curves, Line, Map, Numbers, Panel
from posenc.report.pictures.recorder import DRAWS, asking, attention, by_distance, mean_weights
from posenc.report.pictures.sampling import DISTANCE, FAR, MOST_ROWS, array, marks, multiple, some

MOST_KEYS = 4096
WEIGHT = "mean attention weight"
KEYS = "keys n that it sees"


def weight_panels(encoding: Encoding) -> list[Panel]:
    """Where attention goes with random inputs, by head and by length, and one example."""
    shape, length = encoding.shape, encoding.shape.train_length
    panels: list[Panel] = []
    if "scores" in encoding.hooks:
        first, last = _change(encoding, 0), _change(encoding, shape.n_layers - 1)
        panels.append(first)
        if any(not np.allclose(a.y, b.y) for a, b in zip(first.lines, last.lines, strict=True)):
            panels.append(last)
    keys = min(length, MOST_KEYS)
    table = mean_weights(encoding, shape, keys)
    without = mean_weights(None, shape, keys).mean(0, keepdims=True)
    r = np.arange(table.shape[1], dtype=np.float64)
    lines = [Line(f"head {h + 1}", r, _smooth(table[h])) for h in some(len(table), 4)]
    lines.append(Line("without encoding", r, _smooth(without[0]), reference=True))
    title = f"Attention of random inputs to n = {multiple(keys, length)} keys"
    panels.append(Curves(title, DISTANCE, WEIGHT, lines, x_scale="symlog", y_scale="log", brief=True))
    panels.append(_by_length(encoding))
    rows = min(length, MOST_ROWS)
    weights, change = attention(encoding, shape, rows, rows, 0)
    causal = torch.ones(rows, rows, dtype=torch.bool).tril()
    at = array(torch.arange(rows))
    for name, unit, values in (
        ("Change of the scores, one example, head 1", "change of the score (nats)", change),
        ("Attention weights, one example, head 1", "attention weight", weights),
    ):
        if values is not None:
            z = array(values[0].double().masked_fill(~causal, torch.nan))
            panels.append(
                Map(
                    name,
                    "key position in tokens",
                    "query position",
                    unit,
                    z,
                    at,
                    at,
                    matrix=True,
                    log=values is weights,
                )
            )
    return panels


def _change(encoding: Encoding, layer: int) -> Curves:
    """What the `scores` hook makes of the score at distance r: mean over inputs, spread for head 1."""
    shape, length = encoding.shape, encoding.shape.train_length
    keys = min(2 * length, MOST_KEYS)
    changes = []
    for i in range(DRAWS):
        _, change = attention(encoding, shape, keys, asking(keys), i, layer)
        assert change is not None
        changes.append(by_distance(change))
    every = torch.cat(changes).double()  # (draws x queries, H, R)
    mean, spread = array(every.mean(0)), array(every.std(0))
    r = np.arange(mean.shape[1], dtype=np.float64)
    lines = [
        Line(
            f"head {h + 1}",
            r,
            mean[h],
            mean[h] - spread[h] if h == 0 else None,
            mean[h] + spread[h] if h == 0 else None,
        )
        for h in some(len(mean), 4)
    ]
    title = f"Change of the scores, layer {layer + 1} (± sd: head 1)"
    return Curves(
        title, DISTANCE, ADDED, lines, x_scale="symlog", marks=marks(encoding, far=False), y_marks={"": 0.0}
    )


def _by_length(encoding: Encoding) -> Curves:
    """The mean over heads for windows of several lengths, beside 1/n."""
    length = encoding.shape.train_length
    lines = []
    for keys in _lengths(length):
        y = _smooth(mean_weights(encoding, encoding.shape, keys).mean(0))
        lines.append(Line(f"n = {multiple(keys, length)}", np.arange(len(y), dtype=np.float64), y))
    return Curves(
        "The same to n keys, mean of the heads",
        DISTANCE,
        WEIGHT,
        lines,
        x_scale="symlog",
        y_scale="log",
        marks=marks(encoding),
        ordered=True,
    )


def uniform_panels(encoding: Encoding) -> list[Panel]:
    """No hook at all: every key counts the same, so a longer window thins attention out."""
    shape, length = encoding.shape, encoding.shape.train_length
    lines = []
    for keys in _lengths(length):
        y = _smooth(mean_weights(encoding, shape, keys).mean(0))
        lines.append(Line(f"n = {multiple(keys, length)}", np.arange(len(y), dtype=np.float64), y))
    counts = np.unique(np.geomspace(1, _lengths(length)[-1], 25).round().astype(int))
    largest, entropy = (
        np.array(one) for one in zip(*(_spread(encoding, int(n)) for n in counts), strict=True)
    )
    x = counts.astype(np.float64)
    return [
        Curves(
            "No encoding: about 1/n to every key",
            DISTANCE,
            WEIGHT,
            lines,
            x_scale="symlog",
            y_scale="log",
            marks=marks(encoding),
            ordered=True,
            brief=True,
        ),
        Curves(
            "Largest weight of a query",
            KEYS,
            "attention weight",
            [Line("random inputs", x, largest), Line("1/n", x, 1 / x, reference=True)],
            x_scale="log",
            y_scale="log",
            marks=marks(encoding),
        ),
        Curves(
            "Entropy of a query's weights",
            KEYS,
            "nats",
            [Line("random inputs", x, entropy), Line("log n, all alike", x, np.log(x), reference=True)],
            x_scale="log",
            marks=marks(encoding),
        ),
    ]


def _spread(encoding: Encoding, keys: int) -> tuple[float, float]:
    """Largest weight and entropy (nats) of a query that sees so many keys, mean over random inputs."""
    drawn = [attention(encoding, encoding.shape, keys, 1, i)[0] for i in range(DRAWS)]
    p = torch.stack(drawn).double()  # (draws, H, 1, S)
    return float(p.amax(-1).mean()), float(-torch.xlogy(p, p).sum(-1).mean())


def _lengths(length: int) -> list[int]:
    """Windows to compare: up to 8T, or as long as can be afforded."""
    return sorted({min(times * length, MOST_KEYS) for times in (1, 2, 4, FAR)})


def _smooth(y: Numbers) -> Numbers:
    """Mean over neighbours up to a twentieth of the distance away, against the noise of the inputs."""
    total = np.concatenate(([0.0], np.cumsum(y)))
    at = np.arange(len(y))
    half = at // 20
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(y))
    smooth: Numbers = (total[high] - total[low]) / (high - low)
    return smooth
