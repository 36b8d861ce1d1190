"""Measure an encoding through its hooks: which panels there are follows from `encoding.hooks`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding, Shape, float64
from posenc.encodings.sum import Composed
from posenc.model.kernels import attend
from posenc.report.pictures.panels import Curves, Line, Map, Numbers, Panel

FAR = 8  # pictures go to this many times T
MOST_POINTS, MOST_ROWS, MOST_LINES = 1024, 256, 6  # of a curve, of a map, of a panel
FEW_LINES = 2  # of random values, which make a tangle
MOST_KEYS = 4096  # of an attention on random inputs
DRAWS = 32  # random windows
QUERIES = 16  # of each window, the last ones
VECTORS = 64  # random queries whose scores are averaged
DRAWN = 5  # positions of so many windows

POSITION, DISTANCE = "position in tokens", "distance r in tokens"
ADDED, WEIGHT = "added to the score (nats)", "mean attention weight"
SILENT = "parameters that start at zero, where they change nothing, are drawn with random values"
INPUTS = "attention in layer 1; its queries, keys and inputs are random, of unit variance"
ATTENDING = {"scores", "weights", "values"}  # hooks that meet the inputs: measured inside the attention
BIASES = {"bias", "distance_bias"}


@torch.no_grad()
def measure(encoding: Encoding, before: Encoding | None = None) -> tuple[list[Panel], list[str]]:
    """Return the panels of an encoding (with its options, as the attention sees it), and notes on them.

    `before` is the one that was trained, where this one is a test-time extension of it: frequencies and
    scores of rotations are drawn beside those of it.
    """
    hooks = encoding.hooks
    with _random_for_zeros(encoding) as silent:
        panels = [
            *(drawn_panels(encoding) if "positions" in hooks else []),
            *(embed_panels(encoding) if "embed" in hooks else []),
            *(rotation_panels(encoding, before) if "rotate" in hooks else []),
            *(bias_panels(encoding, FEW_LINES if silent else MOST_LINES) if hooks & BIASES else []),
            *(mask_panels(encoding) if "visible" in hooks else []),
            *(weight_panels(encoding) if hooks & ATTENDING else []),
        ]
    notes = [SILENT] if silent else []
    if hooks & ATTENDING or not panels:
        notes.append(INPUTS)
    return panels or [length_panel(encoding, "No encoding: about 1/n to every key")], notes


def _zeros(encoding: Encoding) -> list[nn.Parameter]:
    if isinstance(encoding, Composed):  # the parts of options are not registered in it
        return [parameter for part in encoding.parts for parameter in _zeros(part)]
    if not encoding.hooks <= {*BIASES, "scores", "prepare"}:
        return []
    return [parameter for parameter in encoding.parameters() if not parameter.any()]


@contextmanager
def _random_for_zeros(encoding: Encoding) -> Iterator[bool]:
    """Put random values in the parameters of scores that are all zero, if there are any; zeros afterwards."""
    zeros = _zeros(encoding)
    for index, parameter in enumerate(zeros):
        std = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 1.0
        nn.init.normal_(parameter, std=std, generator=chance("zeros", index))
    try:
        yield bool(zeros)
    finally:
        for parameter in zeros:
            nn.init.zeros_(parameter)


# --- what is sampled


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


def _matrix(title: str, unit: str, z: Tensor, pos: Tensor, **look: Any) -> Map:
    """Draw (T, T) values of queries and keys at `pos`, those of later keys left out."""
    shown = array(z.double().masked_fill(pos[:, None] < pos[None, :], torch.nan))
    at = array(pos)
    return Map(title, "key position in tokens", "query position", unit, shown, at, at, matrix=True, **look)


# --- positions: drawn, added at the input, turning queries and keys


def drawn_panels(encoding: Encoding) -> list[Panel]:
    """Draw positions of a window of T tokens as training does."""
    length, generator = encoding.shape.train_length, chance("positions")
    at = steps(length - 1)
    draws = [encoding.positions(length, True, generator)[at] for _ in range(DRAWN)]
    lines = [Line(f"draw {i + 1}", array(at), array(drawn)) for i, drawn in enumerate(draws)]
    lines.append(Line("contiguous", array(at), array(at), reference=True))
    title, here = "Positions drawn in training", marks(encoding, far=False)
    return [Curves(title, "index in the window", POSITION, lines, brief=True, y_marks=here)]


def embed_panels(encoding: Encoding) -> list[Panel]:
    """Measure the vectors of positions, and their inner products."""
    length, width = encoding.shape.train_length, encoding.shape.d_model
    reach = _reach(encoding)
    pos = steps(reach - 1, 2 * MOST_ROWS)
    rows = added(encoding, pos, reach)  # (n, d)
    within = pos[pos < length]
    by_window = not torch.allclose(added(encoding, within, length), rows[: len(within)], atol=1e-5)
    title = "Added at the input"
    title += f" (defined below {multiple(reach, length)})" if reach < FAR * length else ""
    title += f", in a window of {multiple(reach, length)}" if by_window else ""
    shown = {name: at for name, at in marks(encoding).items() if at <= reach}
    at, dimensions = array(pos), array(torch.arange(width))
    stream = "added to the stream"
    heat = Map(title, POSITION, "dimension", stream, array(rows).T, at, dimensions, marks=shown)
    return [heat, _products(encoding, reach)]


def added(encoding: Encoding, pos: Tensor, window: int) -> Tensor:
    """Return what layer 0 adds to a stream of zeros at these positions of a window, (n, d_model) float32.

    Of the window only these and its last position are there, increasing, as an encoding may suppose.
    """
    present = torch.cat((pos, torch.tensor([window - 1]))).unique()
    rows = encoding.embed(torch.zeros(1, len(present), encoding.shape.d_model), present, 0)[0]
    return rows[torch.searchsorted(present, pos)]


def _products(encoding: Encoding, reach: int) -> Curves:
    """Multiply the vectors at t and t + r."""
    length = encoding.shape.train_length
    half = max(1, min(length, reach) // 2)
    starts = [t for t in (length // 2, length, 2 * length, 4 * length) if half <= t < reach - half]
    r, lines = torch.arange(-half, half + 1), []
    for t in starts or [min(half, reach - 1)]:
        at = (t + r)[(t + r >= 0) & (t + r < reach)]
        products = added(encoding, torch.tensor([t]), reach) @ added(encoding, at, reach).T
        lines.append(Line(f"t = {multiple(t, length)}", array(at - t), array(products[0])))
    return Curves("PE(t) · PE(t+r)", "offset r in tokens", "inner product", lines, ordered=True, brief=True)


def _reach(encoding: Encoding) -> int:
    """Return the most positions, up to 8 T, that the encoding has vectors for."""
    length = encoding.shape.train_length
    for times in (FAR, 4, 2):
        try:
            added(encoding, torch.tensor([0]), times * length)
        except ValueError:
            continue
        return times * length
    return length


def rotation_panels(encoding: Encoding, before: Encoding | None = None) -> list[Panel]:
    """Measure a `rotate` hook; frequencies where it says which it has.

    `before`: as trained, in grey where an extension has changed it.
    """
    theta, layer = _frequencies(encoding), _turning_layer(encoding)
    panels: list[Panel] = []
    if theta is not None and bool((theta > 0).any()):
        panels.append(_wavelengths(encoding, theta, None if before is None else _frequencies(before)))
    if layer is not None:
        panels.append(_self_score(encoding, layer, before))
    return panels


def _frequencies(encoding: Encoding) -> Tensor | None:
    """Return radians a token of each pair, (pairs,) float64, where the encoding or a part of it has them."""
    if isinstance(encoding, Composed):
        return next((theta for part in encoding.parts if (theta := _frequencies(part)) is not None), None)
    having = getattr(encoding, "frequencies", None) if "rotate" in encoding.hooks else None
    return float64(having(torch.device("cpu"))) if callable(having) else None


def _turning_layer(encoding: Encoding) -> int | None:
    """Return the first layer in which something is turned."""
    x, pos = torch.ones(1, encoding.shape.n_heads, 2, encoding.shape.head_dim), torch.tensor([1, 3])
    for layer in range(encoding.shape.n_layers):
        q, _ = encoding.rotate(x, x, pos, pos, layer)
        if q.shape != x.shape or not torch.equal(q, x):
            return layer
    return None


def _wavelengths(encoding: Encoding, theta: Tensor, trained: Tensor | None) -> Curves:
    """Draw 2 pi / theta of each pair against T; in grey those of `trained` where they are others."""

    def waves(label: str, theta: Tensor, which: Tensor, reference: bool = False) -> Line:
        pairs = torch.nonzero(which)[:, 0]
        return Line(label, array(pairs), array(2 * math.pi / theta[pairs]), reference=reference)

    turned = theta > 0
    short = turned & (2 * math.pi <= theta * encoding.shape.train_length)
    groups = {"full turn within T": short, "none within T": turned & ~short}
    lines = [
        waves(f"{name}: {int(which.sum())}", theta, which) for name, which in groups.items() if which.any()
    ]
    if trained is not None and not torch.equal(trained, theta):
        lines.append(waves("as trained", trained, trained > 0, reference=True))
    still = int((~turned).sum())
    title = "Wavelength of each pair" + (f" ({still} of {len(theta)} are still)" if still else "")
    axes = "pair of numbers", "wavelength in tokens"
    return Curves(title, *axes, lines, y_scale="log", y_marks=marks(encoding), points=True, brief=True)


def scores_with_itself(encoding: Encoding, r: Tensor, layer: int) -> tuple[Numbers, Numbers]:
    """Return mean and spread of the score of q at r with k = q at 0, for each head: (H, R) each."""
    shape = encoding.shape
    generator, scores = chance("rotation"), []
    for _ in range(VECTORS):
        x = torch.randn(1, 1, 1, shape.head_dim, generator=generator).expand(1, shape.n_heads, len(r), -1)
        q, k = encoding.rotate(x, x, r, r, layer)
        scores.append((q.double() * k[:, :, :1].double()).sum(-1)[0] * shape.head_dim**-0.5)
    every = torch.stack(scores)  # (vectors, H, R)
    return array(every.mean(0)), array(every.std(0, correction=0))


def _self_score(encoding: Encoding, layer: int, before: Encoding | None) -> Curves:
    """Draw how a key at distance r scores against a query of the same numbers; in grey as trained."""
    r = distances(FAR * encoding.shape.train_length)
    mean, spread = scores_with_itself(encoding, r, layer)
    same = bool((abs(mean - mean[:1]) < 1e-6).all())
    first = (f"mean of {VECTORS} random q" if same else "head 1") + " ± standard deviation"
    lines = [Line(first, array(r), mean[0], mean[0] - spread[0], mean[0] + spread[0])]
    lines += [Line(f"head {h + 1}", array(r), mean[h]) for h in some(len(mean))[1:] if not same]
    if before is not None:
        trained, _ = scores_with_itself(before, r, layer)
        if abs(trained - mean).max() > 1e-6:
            lines.append(Line("as trained", array(r), trained[0], reference=True))
    alone = encoding.hooks & {*BIASES, "scores", "weights"}
    title = "Score with an equal key, by rotation alone" if alone else "Score of a query with an equal key"
    here, unit = marks(encoding), "mean score (nats)"
    return Curves(title, DISTANCE, unit, lines, "symlog", marks=here, y_marks={"": 0.0}, brief=True)


# --- scores: biases, hidden keys


def bias_panels(encoding: Encoding, most: int) -> list[Panel]:
    """Draw curves of `most` heads in the first and, where it differs, the last layer; and a matrix."""
    length, layers = encoding.shape.train_length, encoding.shape.n_layers
    r, by_query = distances(FAR * length), "bias" in encoding.hooks
    tables = [_bias_of_query(encoding, FAR * length, r, layer) for layer in (0, layers - 1)]
    differ = not np.allclose(tables[0], tables[1], rtol=1e-5, atol=1e-6)
    panels: list[Panel] = []
    for layer, table in zip((0, layers - 1), tables if differ else tables[:1], strict=False):
        chosen = some(len(table), most)
        title = "Bias" + (f" at i = {FAR}T" if by_query else "") + (f", layer {layer + 1}" if differ else "")
        title += ", each head" if len(chosen) == len(table) else f", {len(chosen)} of {len(table)} heads"
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
    title = f"Bias as a matrix{', layer 1' if differ else ''}, head 1"
    return [*panels, _matrix(title, ADDED, encoding.bias(pos, pos, 0)[0], pos)]


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
        title = "Keys seen in " + ("every layer" if len(groups) == 1 else f"layer {named}")
        panels.append(_matrix(title, "", masks[layers[0]], pos, binary=True, brief=layers[0] == 0))
    return panels


# --- the real attention on random inputs


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
    encoding: Encoding | None, shape: Shape, keys: int, queries: int, draw: int
) -> tuple[Tensor, Tensor | None]:
    """Return weights (H, T, S) of random inputs, numbers of unit variance, and what the scores changed by.

    The last T = `queries` of S = `keys` tokens ask. None: the same attention without encoding.
    """
    generator = chance("attention", draw)
    x = torch.randn(1, keys, shape.d_model, generator=generator)
    q, k = torch.randn(2, 1, shape.n_heads, keys, shape.head_dim, generator=generator)
    recorder = Recorder(shape, () if encoding is None else (encoding,))
    attend(q[:, :, -queries:], k, torch.zeros_like(k), x, torch.arange(keys), recorder, layer=0)

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
    queries = min(QUERIES, max(1, keys // 4))  # few beside the keys that they see
    window = keys + queries // 2
    draws = [by_distance(attention(encoding, shape, window, queries, i)[0]) for i in range(DRAWS)]
    return array(torch.cat(draws).double().mean(0))


def weight_panels(encoding: Encoding) -> list[Panel]:
    """Draw where attention goes on random inputs: by head, by length, and one example."""
    shape, length = encoding.shape, encoding.shape.train_length
    panels: list[Panel] = [_change(encoding)] if "scores" in encoding.hooks else []
    keys = min(length, MOST_KEYS)
    table, without = mean_weights(encoding, shape, keys), mean_weights(None, shape, keys).mean(0)
    r = np.arange(table.shape[1], dtype=np.float64)
    lines = [Line(f"head {h + 1}", r, _smooth(table[h])) for h in some(len(table), 4)]
    lines.append(Line("without encoding", r, _smooth(without), reference=True))
    title = f"Attention of random inputs to n = {multiple(keys, length)} keys"
    panels.append(Curves(title, DISTANCE, WEIGHT, lines, "symlog", "log", brief=True))
    panels.append(length_panel(encoding, "The same to n keys, mean of the heads"))
    rows = min(length, MOST_ROWS)
    weights, change = attention(encoding, shape, rows, rows, 0)
    at, example = torch.arange(rows), "one example, head 1"
    if change is not None:
        return [*panels, _matrix(f"Change of the scores, {example}", ADDED, change[0], at)]
    return [*panels, _matrix(f"Attention weights, {example}", "attention weight", weights[0], at, log=True)]


def _change(encoding: Encoding) -> Curves:
    """Draw what the `scores` hook makes of the score at distance r: mean over inputs, spread for head 1."""
    shape = encoding.shape
    keys = min(2 * shape.train_length, MOST_KEYS)
    queries = min(QUERIES, max(1, keys // 4))
    changes = [attention(encoding, shape, keys, queries, i)[1] for i in range(DRAWS)]
    every = torch.cat([by_distance(change) for change in changes if change is not None]).double()
    mean, spread = array(every.mean(0)), array(every.std(0))  # (H, R), over draws and queries
    r = np.arange(mean.shape[1], dtype=np.float64)
    lines = [Line("head 1", r, mean[0], mean[0] - spread[0], mean[0] + spread[0])]
    lines += [Line(f"head {h + 1}", r, mean[h]) for h in some(len(mean), 4)[1:]]
    title = "Change of the scores (± sd: head 1)"
    here = marks(encoding, far=False)
    return Curves(title, DISTANCE, ADDED, lines, "symlog", marks=here, y_marks={"": 0.0})


def length_panel(encoding: Encoding, title: str) -> Curves:
    """Draw the mean over heads for windows of several lengths: up to 8T, or as long as can be afforded."""
    length, lines = encoding.shape.train_length, []
    for keys in sorted({min(times * length, MOST_KEYS) for times in (1, 2, 4, FAR)}):
        y = _smooth(mean_weights(encoding, encoding.shape, keys).mean(0))
        lines.append(Line(f"n = {multiple(keys, length)}", np.arange(len(y), dtype=np.float64), y))
    here = marks(encoding)
    return Curves(title, DISTANCE, WEIGHT, lines, "symlog", "log", here, ordered=True, brief=True)


def _smooth(y: Numbers) -> Numbers:
    """Average neighbours up to a twentieth of the distance away, against the noise of the inputs."""
    total = np.concatenate(([0.0], np.cumsum(y)))
    at = np.arange(len(y))
    low, high = np.maximum(at - at // 20, 0), np.minimum(at + at // 20 + 1, len(y))
    smooth: Numbers = (total[high] - total[low]) / (high - low)
    return smooth
