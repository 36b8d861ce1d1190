"""Attention weights of random inputs: over the distance, by head and by length, and one example."""

from __future__ import annotations

import numpy as np
import torch

from posenc.encodings.base import Encoding
from posenc.pictures.bias import ADDED
from posenc.pictures.panels import Curves, Line, Map, Numbers, Panel
from posenc.pictures.recorder import DRAWS, QUERIES, attention, by_distance, mean_weights
from posenc.pictures.sampling import (
    DISTANCE,
    FAR,
    MOST_ROWS,
    array,
    marks,
    multiple,
    some,
)

MOST_KEYS = 4096
WEIGHT = "mean attention weight"


def weight_panels(encoding: Encoding) -> list[Panel]:
    """Where attention goes with random inputs, by head and by length, and one example."""
    shape, length = encoding.shape, encoding.shape.train_length
    panels: list[Panel] = []
    if "scores" in encoding.hooks:
        panels.append(_change(encoding))
    keys = min(length, MOST_KEYS)
    table = mean_weights(encoding, shape, keys)
    without = mean_weights(None, shape, keys).mean(0, keepdims=True)
    r = np.arange(table.shape[1], dtype=np.float64)
    lines = [Line(f"head {h + 1}", r, _smooth(table[h])) for h in some(len(table), 4)]
    lines.append(Line("without encoding", r, _smooth(without[0]), reference=True))
    if np.allclose(table, without, rtol=1e-3):
        lines = lines[-1:]
    title = f"Random inputs, n = {multiple(keys, length)}, each head"
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


def _change(encoding: Encoding) -> Curves:
    """What the `scores` hook makes of the score at distance r: mean over inputs, spread for head 1."""
    shape, length = encoding.shape, encoding.shape.train_length
    keys = min(2 * length, MOST_KEYS)
    changes = []
    for i in range(DRAWS):
        _, change = attention(encoding, shape, keys, min(QUERIES, max(1, keys // 4)), i)
        assert change is not None
        changes.append(by_distance(change))
    every = torch.cat(changes).double()  # (draws x queries, H, R)
    mean, spread = array(every.mean(0)), array(every.std(0))
    r = np.arange(mean.shape[1], dtype=np.float64)
    lines = [
        Line(
            f"head {h + 1}" + (" ± standard deviation" if h == 0 else ""),
            r,
            mean[h],
            mean[h] - spread[h] if h == 0 else None,
            mean[h] + spread[h] if h == 0 else None,
        )
        for h in some(len(mean), 4)
    ]
    title = "Change of the scores of random inputs"
    return Curves(
        title, DISTANCE, ADDED, lines, x_scale="symlog", marks=marks(encoding, far=False), y_marks={"": 0.0}
    )


def _by_length(encoding: Encoding) -> Curves:
    """The mean over heads for windows of several lengths, beside 1/n."""
    length = encoding.shape.train_length
    lines = []
    for keys in (length, 2 * length, 4 * length, FAR * length):
        if keys <= MOST_KEYS or keys == length:
            y = _smooth(mean_weights(encoding, encoding.shape, min(keys, MOST_KEYS)).mean(0))
            lines.append(Line(f"n = {multiple(keys, length)}", np.arange(len(y), dtype=np.float64), y))
    title = "Random inputs, n tokens, mean of heads"
    return Curves(
        title,
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
    for keys in (length, 2 * length, 4 * length, FAR * length):
        keys = min(keys, MOST_KEYS)
        y = mean_weights(encoding, shape, keys).mean(0)
        x = np.arange(len(y), dtype=np.float64)
        lines.append(Line(f"n = {multiple(keys, length)}", x, _smooth(y)))
    rows = min(length, MOST_ROWS)
    at = np.arange(rows, dtype=np.float64)
    z = np.where(at[:, None] >= at[None, :], 1 / (at[:, None] + 1), np.nan)
    return [
        Curves(
            "No encoding: every key gets about 1/n",
            DISTANCE,
            WEIGHT,
            lines,
            x_scale="symlog",
            y_scale="log",
            marks=marks(encoding),
            ordered=True,
            brief=True,
        ),
        Map(
            "Equal scores: 1/(i + 1) to each key",
            "key position in tokens",
            "query position",
            "attention weight",
            z,
            at,
            at,
            matrix=True,
            log=True,
        ),
    ]


def _smooth(y: Numbers) -> Numbers:
    """Mean over neighbours in a window that grows with the distance (a tenth), against the inputs' noise."""
    total = np.concatenate(([0.0], np.cumsum(y)))
    at = np.arange(len(y))
    half = at // 10
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(y))
    smooth: Numbers = (total[high] - total[low]) / (high - low)
    return smooth
