"""What is added to the scores: over the distance for each head, and as a matrix."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.report.pictures.panels import Curves, Line, Map, Numbers, Panel
from posenc.report.pictures.sampling import (
    DISTANCE,
    FAR,
    MOST_ROWS,
    array,
    distances,
    marks,
    multiple,
    some,
    steps,
)

ADDED = "added to the score (nats)"


def bias_panels(encoding: Encoding, most: int) -> list[Panel]:
    """Curves of `most` heads in the first and, where it differs, the last layer; matrices of two heads."""
    length, layers = encoding.shape.train_length, encoding.shape.n_layers
    by_distance = "bias" not in encoding.hooks
    end = FAR * length
    r = distances(end)
    first, last = bias_over(encoding, r, 0), bias_over(encoding, r, layers - 1)
    differ = layers > 1 and not np.allclose(first, last, rtol=1e-5, atol=1e-6)
    seen = "" if by_distance else f" at i = {multiple(end, length)}"
    panels: list[Panel] = []
    for layer, table in ((0, first), (layers - 1, last)) if differ else ((0, first),):
        where = f", layer {layer + 1}" if differ else ""
        chosen = some(len(table), most)
        who = "each head" if len(chosen) == len(table) else f"{len(chosen)} of {len(table)} heads"
        panels.append(_curves(encoding, f"Bias{seen}{where}, {who}", r, table, chosen, brief=layer == 0))
    if not by_distance:
        panels.append(_by_query(encoding))
    if not first.any() and not last.any():
        return panels[:1]
    pos = steps(length - 1, MOST_ROWS)
    matrix = encoding.bias(pos, pos, 0)  # (H, n, n)
    causal = pos[:, None] >= pos[None, :]
    heads = [0] if len(matrix) == 1 else [0, len(matrix) - 1]
    for h in heads:
        z = array(matrix[h].double().masked_fill(~causal, torch.nan))
        where = f", layer 1, head {h + 1}" if differ else f", head {h + 1}"
        title = f"Bias as a matrix{where}"
        panels.append(
            Map(
                title,
                "key position in tokens",
                "query position",
                ADDED,
                z,
                array(pos),
                array(pos),
                matrix=True,
            )
        )
    return panels


def bias_over(encoding: Encoding, r: Tensor, layer: int) -> Numbers:
    """The bias at the distances r of a query at the largest of them: (H, R)."""
    if "bias" not in encoding.hooks:
        return array(encoding.distance_bias(r, layer))
    return _of_query(encoding, int(r.max()), r, layer)


def _of_query(encoding: Encoding, i: int, r: Tensor, layer: int) -> Numbers:
    keys = (i - r).flip(0)  # increasing
    return array(encoding.bias(torch.tensor([i]), keys, layer)[:, 0].flip(-1))


def _curves(
    encoding: Encoding, title: str, r: Tensor, table: Numbers, heads: list[int], brief: bool
) -> Curves:
    lines = [Line(f"head {h + 1}", array(r), table[h]) for h in heads]
    if not table.any():
        title += ": all zero"
        lines = [Line("every head", array(r), table[0])]
    return Curves(title, DISTANCE, ADDED, lines, x_scale="symlog", marks=marks(encoding), brief=brief)


def _by_query(encoding: Encoding) -> Curves:
    """The same head for queries at several positions: it is not a function of the distance alone."""
    length = encoding.shape.train_length
    lines = []
    for i in (max(1, length // 4), length, 2 * length, 4 * length, FAR * length):
        r = distances(i)
        lines.append(Line(f"i = {multiple(i, length)}", array(r), _of_query(encoding, i, r, 0)[0]))
    title = "Head 1 for queries at several positions i"
    return Curves(title, DISTANCE, ADDED, lines, x_scale="symlog", marks=marks(encoding), ordered=True)
