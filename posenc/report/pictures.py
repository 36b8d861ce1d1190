"""Pictures of encodings: measured through their hooks, drawn by Vega or written as numbers for a terminal.

Which panels there are follows from `encoding.hooks`.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
import vl_convert
from numpy.typing import NDArray
from torch import Tensor, nn

from posenc.core.seeds import generator_for
from posenc.encodings.base import Encoding, float64
from posenc.encodings.sum import Composed
from posenc.model.kernels import attend
from posenc.report.charts import Spec, image, on_paper, stored, template
from posenc.report.series import ON_WHITE
from posenc.report.table import CellText, Table
from posenc.report.writers import table_lines

FAR = 8  # pictures go to this many times T
MOST_POINTS, MOST_ROWS, MOST_LINES = 1024, 64, 6  # of a curve, of a map, of a panel
MOST_KEYS = 4096  # of an attention on random inputs
DRAWS, QUERIES = 32, 16  # random windows; queries of each, the last ones
VECTORS = 64  # random queries whose scores are averaged
DRAWN = 5  # positions of so many windows
POSITION, DISTANCE = "position in tokens", "distance r in tokens"
ADDED, WEIGHT = "added to the score (nats)", "mean attention weight"
SILENT = "parameters that start at zero, where they change nothing, are drawn with random values"
INPUTS = "attention in layer 1; its queries, keys and inputs are random, of unit variance"
ATTENDING = {"scores", "weights", "values"}  # hooks that meet the inputs: measured inside the attention
BIASES = {"bias", "distance_bias"}

Numbers = NDArray[np.float64]


@dataclass
class Line:
    """One curve: y over x, (n,) each."""

    label: str
    x: Numbers
    y: Numbers
    reference: bool = False  # what the others are compared with: grey


@dataclass
class Curves:
    """Lines over a shared axis. `marks` are dashed lines by name, at places on x; `y_marks` on y."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    x_scale: Literal["linear", "symlog"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    marks: dict[str, float] = field(default_factory=dict)
    y_marks: dict[str, float] = field(default_factory=dict)
    points: bool = False  # dots instead of lines
    ordered: bool = False  # the lines have an order: colours of a scale instead of distinct ones


@dataclass
class Map:
    """Who sees whom: a matrix (queries, keys) of 0 and 1 at the positions `at`; nan is not drawn."""

    title: str
    z: Numbers
    at: Numbers


Panel = Curves | Map


@dataclass
class Picture:
    """Panels under one title."""

    title: str
    panels: list[Panel]
    notes: list[str] = field(default_factory=list)


@torch.no_grad()
def measure(encoding: Encoding) -> tuple[list[Panel], list[str]]:
    """Return the panels of an encoding (with its options, as the attention sees it), and notes on them.

    Parameters of scores that are all zero get random values.
    """
    hooks, zeros = encoding.hooks, _zeros(encoding)
    for index, parameter in enumerate(zeros):
        std = parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 1.0
        nn.init.normal_(parameter, std=std, generator=_chance("zeros", index))
    panels = [
        *(_drawn_panels(encoding) if "positions" in hooks else []),
        *(_embed_panels(encoding) if "embed" in hooks else []),
        *(_rotation_panels(encoding) if "rotate" in hooks else []),
        *(_bias_panels(encoding, 2 if zeros else MOST_LINES) if hooks & BIASES else []),  # few: a tangle
        *(_mask_panels(encoding) if "visible" in hooks else []),
        *([_length_panel(encoding)] if hooks & ATTENDING else []),
    ]
    notes = [SILENT] if zeros else []
    if hooks & ATTENDING or not panels:
        notes.append(INPUTS)
    return panels or [_length_panel(encoding)], notes


def _zeros(encoding: Encoding) -> list[nn.Parameter]:
    if isinstance(encoding, Composed):  # the parts of options are not registered in it
        return [parameter for part in encoding.parts for parameter in _zeros(part)]
    acting = encoding.hooks <= {*BIASES, "scores", "prepare"}
    return [parameter for parameter in encoding.parameters() if acting and not parameter.any()]


def _array(x: Tensor) -> Numbers:
    """Convert to float64 on the CPU."""
    return x.detach().double().cpu().numpy()


def _chance(name: str, number: int = 0) -> torch.Generator:
    """Return a fixed source of random inputs, so that a picture is the same every time."""
    return generator_for(0, "picture", name, number)


def _steps(end: int, most: int) -> Tensor:
    """Return 0..end, all of them or `most` at even steps: (n,) int64."""
    return torch.linspace(0, end, min(end + 1, most), dtype=torch.float64).round().long()


def _distances(end: int) -> Tensor:
    """Return 0..end, or dense where a logarithmic axis is wide: (n,) int64."""
    if end < MOST_POINTS:
        return torch.arange(end + 1)
    half = MOST_POINTS // 2
    far = torch.logspace(np.log10(half), np.log10(end), half, dtype=torch.float64).round().long()
    return torch.cat((torch.arange(half), far, torch.tensor([end]))).clamp_max(end).unique()


def _heads(values: Numbers, x: Tensor, most: int = MOST_LINES) -> list[Line]:
    """Draw (heads, n) values over x: all heads or `most` of them from first to last."""
    return [Line(f"head {h + 1}", _array(x), values[h]) for h in _steps(len(values) - 1, most).tolist()]


def _marks(encoding: Encoding) -> dict[str, float]:
    """Return where T and 8T are."""
    length = encoding.shape.train_length
    return {"T": float(length), f"{FAR}T": float(FAR * length)}


def _multiple(n: int, length: int) -> str:
    """Write `4T` for a multiple of T, `T/4` for a part of it, else the number."""
    if n and n % length == 0:
        return "T" if n == length else f"{n // length}T"
    return f"T/{length // n}" if n and length % n == 0 else str(n)


# --- positions: drawn, added at the input, turning queries and keys


def _drawn_panels(encoding: Encoding) -> list[Panel]:
    """Draw positions of a window of T tokens as training does."""
    length, generator = encoding.shape.train_length, _chance("positions")
    at = _steps(length - 1, MOST_POINTS)
    draws = [encoding.positions(length, True, generator)[at] for _ in range(DRAWN)]
    lines = [Line(f"draw {i + 1}", _array(at), _array(drawn)) for i, drawn in enumerate(draws)]
    lines.append(Line("contiguous", _array(at), _array(at), reference=True))
    axes = "index in the window", POSITION
    return [Curves("Positions drawn in training", *axes, lines, y_marks={"T": float(length)})]


def _embed_panels(encoding: Encoding) -> list[Panel]:
    """Measure the inner products of the vectors of positions, as far as the encoding has them."""
    length, reach = encoding.shape.train_length, FAR * encoding.shape.train_length
    while reach > length:
        try:
            _added(encoding, torch.tensor([0]), reach)
            break
        except ValueError:
            reach //= 2
    half = max(1, min(length, reach) // 2)
    starts = [t for t in (length // 2, length, 2 * length, 4 * length) if half <= t < reach - half]
    r, lines = torch.arange(-half, half + 1), []
    for t in starts or [min(half, reach - 1)]:
        at = (t + r)[(t + r >= 0) & (t + r < reach)]
        products = _added(encoding, torch.tensor([t]), reach) @ _added(encoding, at, reach).T
        lines.append(Line(f"t = {_multiple(t, length)}", _array(at - t), _array(products[0])))
    title = "PE(t) · PE(t+r)" + (
        f" (defined below {_multiple(reach, length)})" if reach < FAR * length else ""
    )
    return [Curves(title, "offset r in tokens", "inner product", lines, ordered=True)]


def _added(encoding: Encoding, pos: Tensor, window: int) -> Tensor:
    """Return what layer 0 adds to a stream of zeros at these positions of a window, (n, d_model) float32.

    Of the window only these and its last position are there, increasing, as an encoding may suppose.
    """
    present = torch.cat((pos, torch.tensor([window - 1]))).unique()
    rows = encoding.embed(torch.zeros(1, len(present), encoding.shape.d_model), present, 0)[0]
    return rows[torch.searchsorted(present, pos)]


def _rotation_panels(encoding: Encoding) -> list[Panel]:
    """Measure a `rotate` hook: wavelengths where it says which it has, and a query's score with itself."""
    panels: list[Panel] = []
    theta = _frequencies(encoding)
    if theta is not None and bool((theta > 0).any()):
        pairs, still = torch.nonzero(theta > 0)[:, 0], int((theta <= 0).sum())
        line = Line("", _array(pairs), _array(2 * math.pi / theta[pairs]))
        title = "Wavelength of each pair" + (f" ({still} of {len(theta)} are still)" if still else "")
        axes = "pair of numbers", "wavelength in tokens"
        here = _marks(encoding)
        panels.append(Curves(title, *axes, [line], y_scale="log", y_marks=here, points=True))
    x, pos = torch.ones(1, encoding.shape.n_heads, 2, encoding.shape.head_dim), torch.tensor([1, 3])
    for layer in range(encoding.shape.n_layers):  # the first one in which something is turned
        q, _ = encoding.rotate(x, x, pos, pos, layer)
        if q.shape != x.shape or not torch.equal(q, x):
            return [*panels, _self_score(encoding, layer)]
    return panels


def _frequencies(encoding: Encoding) -> Tensor | None:
    """Return radians a token of each pair, (pairs,) float64, where the encoding or a part of it has them."""
    if isinstance(encoding, Composed):
        return next((theta for part in encoding.parts if (theta := _frequencies(part)) is not None), None)
    having = getattr(encoding, "frequencies", None) if "rotate" in encoding.hooks else None
    return float64(having(torch.device("cpu"))) if callable(having) else None


def _self_score(encoding: Encoding, layer: int) -> Curves:
    """Draw how a key at distance r scores against a query of the same random numbers, in the mean."""
    shape, r = encoding.shape, _distances(FAR * encoding.shape.train_length)
    generator, total = _chance("rotation"), torch.zeros(shape.n_heads, len(r), dtype=torch.float64)
    for _ in range(VECTORS):
        x = torch.randn(1, 1, 1, shape.head_dim, generator=generator).expand(1, shape.n_heads, len(r), -1)
        q, k = encoding.rotate(x, x, r, r, layer)
        total += (q.double() * k[:, :, :1].double()).sum(-1)[0] * shape.head_dim**-0.5 / VECTORS
    mean = _array(total)
    same = bool((abs(mean - mean[:1]) < 1e-6).all())
    lines = _heads(mean[:1] if same else mean, r)
    lines[0].label = f"mean of {VECTORS} random q" if same else "head 1"
    alone = encoding.hooks & {*BIASES, "scores", "weights"}
    title = "Score with an equal key, by rotation alone" if alone else "Score of a query with an equal key"
    here, unit = _marks(encoding), "mean score (nats)"
    return Curves(title, DISTANCE, unit, lines, "symlog", marks=here, y_marks={"": 0.0})


# --- scores: biases, hidden keys


def _bias_panels(encoding: Encoding, most: int) -> list[Panel]:
    """Draw curves of `most` heads in the first layer, of the farthest query."""
    i = FAR * encoding.shape.train_length
    r, title = _distances(i), "Bias"
    if "bias" in encoding.hooks:  # of a query at position i
        title += f" at i = {FAR}T"
        table = _array(encoding.bias(torch.tensor([i]), (i - r).flip(0), 0)[:, 0].flip(-1))  # (H, R)
    else:
        table = _array(encoding.distance_bias(r, 0))  # (H, R)
    lines = _heads(table, r, most)
    title += ", each head" if len(lines) == len(table) else f", {len(lines)} of {len(table)} heads"
    return [Curves(title, DISTANCE, ADDED, lines, "symlog", marks=_marks(encoding))]


def _mask_panels(encoding: Encoding) -> list[Panel]:
    """Draw who sees whom, one matrix for each of the layers or heads that differ; at most three."""
    pos = _steps(encoding.shape.train_length - 1, MOST_ROWS)
    masks: dict[bytes, tuple[str, Tensor]] = {}
    for layer in range(encoding.shape.n_layers):
        seen = encoding.visible(pos, pos, layer) & (pos[:, None] >= pos)  # ([H,] T, S)
        for head, one in enumerate(seen if seen.ndim == 3 else [seen], 1):
            name = f"layer {layer + 1}" + (f", head {head}" if seen.ndim == 3 else "")
            masks.setdefault(one.numpy().tobytes(), (name, one))
    shown = [("every layer", seen) for _, seen in masks.values()] if len(masks) == 1 else [*masks.values()]
    later = pos[:, None] < pos[None, :]
    return [
        Map(f"Keys seen in {name}", _array(seen.double().masked_fill(later, torch.nan)), _array(pos))
        for name, seen in shown[:3]
    ]


# --- the real attention on random inputs


class _Recorder(Composed):
    """Watch an encoding in the attention: keep its weights, by block of queries, the last block first."""

    def __init__(self, encoding: Encoding) -> None:
        super().__init__(encoding.shape, (encoding,))
        self.kept: list[Tensor] = []

    @cached_property
    def hooks(self) -> frozenset[str]:
        return super().hooks | {"values"}

    def values(self, p: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        self.kept.append(p)
        return p @ v


def attention(encoding: Encoding, keys: int, queries: int, draw: int) -> Tensor:
    """Return the weights (H, T, S) of random inputs, numbers of unit variance.

    The last T = `queries` of S = `keys` tokens ask.
    """
    generator, shape = _chance("attention", draw), encoding.shape
    x = torch.randn(1, keys, shape.d_model, generator=generator)
    q, k = torch.randn(2, 1, shape.n_heads, keys, shape.head_dim, generator=generator)
    recorder = _Recorder(encoding)
    attend(q[:, :, -queries:], k, torch.zeros_like(k), x, torch.arange(keys), recorder, layer=0)
    padded = [F.pad(one.expand(*one.shape[:3], -1), (0, keys - one.shape[-1])) for one in recorder.kept]
    return torch.cat(padded[::-1], dim=2)[0]


def mean_weights(encoding: Encoding, keys: int) -> Numbers:
    """Return the weight that a query gives to distance r, mean over random inputs: (H, R).

    Of several queries of a window, the middle one of which sees `keys` keys. Each is the mean of its
    neighbours up to a twentieth of the distance away, against the noise of the inputs.
    """
    queries = min(QUERIES, max(1, keys // 4))  # few beside the keys that they see
    window = keys + queries // 2
    r = window - queries + 1
    total = torch.zeros(encoding.shape.n_heads, r, dtype=torch.float64)
    for draw in range(DRAWS):
        weights = attention(encoding, window, queries, draw).double()
        total += sum(weights[:, i, : r + i].flip(-1)[:, :r] for i in range(queries))
    sums = np.pad(np.cumsum(_array(total / (DRAWS * queries)), axis=1), ((0, 0), (1, 0)))
    at = np.arange(r)
    low, high = np.maximum(at - at // 20, 0), np.minimum(at + at // 20 + 1, r)
    smooth: Numbers = (sums[:, high] - sums[:, low]) / (high - low)
    return smooth


def _length_panel(encoding: Encoding) -> Curves:
    """Draw where attention goes on random inputs, mean over heads, for windows of up to 8T tokens."""
    length, lines = encoding.shape.train_length, []
    for keys in sorted({min(times * length, MOST_KEYS) for times in (1, 2, 4, FAR)}):
        y = mean_weights(encoding, keys).mean(0)
        lines.append(Line(f"n = {_multiple(keys, length)}", np.arange(len(y), dtype=np.float64), y))
    here, title = _marks(encoding), "Attention of random inputs to n keys"
    return Curves(title, DISTANCE, WEIGHT, lines, "symlog", "log", here, ordered=True)


# --- drawn by Vega

PANEL, HEIGHT, BETWEEN, COLUMNS = 190, 115, 66, 2  # points: a panel without its axis; panels in a row
LOG_RANGE = 1e7  # of a logarithmic axis: weights below that share of the largest are not shown
DASHES = ([1, 0], [6, 2], [6, 2, 1, 2], [1, 1.5], [6, 1, 1, 1, 1, 1], [2, 3], [1, 3])
GREY = "#737373"
HEAD = {"anchor": "start", "fontSize": 9, "subtitleFontSize": 7.5, "subtitlePadding": 4, "offset": 10}
TEXT_WIDTH = 80  # columns of a terminal
MOST_NUMBERS = 7  # of a line


def picture_bytes(picture: Picture, format: str) -> bytes:
    """Return a file's content, the same bytes for the same picture; `format` is one of FORMATS."""
    return image(vl_convert.vegalite_to_svg(picture_spec(picture), allowed_base_urls=[]), format)


def picture_spec(picture: Picture) -> Spec:
    """Return the chart of a picture; of an odd number of panels the first has a row of its own."""
    odd = len(picture.panels) % COLUMNS
    panels = [_panel(one, PANEL) for one in picture.panels]
    if odd:
        panels[0] = _panel(picture.panels[0], COLUMNS * PANEL + BETWEEN)
    rows = [panels[:odd], *(panels[i : i + COLUMNS] for i in range(odd, len(panels), COLUMNS))]
    alone = dict.fromkeys(("color", "strokeDash", "strokeWidth", "fill", "stroke"), "independent")
    spec = template("lines") | {"title": HEAD | {"text": picture.title, "subtitle": picture.notes}}
    resolve = {"resolve": {"scale": alone}}
    spec["vconcat"] = [{"hconcat": row, "spacing": 24} | resolve for row in rows if row]
    shown = {key: spec[key] for key in ("$schema", "config", "title", "vconcat")}
    return on_paper(shown | resolve, {})


def _panel(panel: Curves | Map, width: float) -> Spec:
    title = {"text": panel.title, "anchor": "start", "frame": "group", "fontSize": 8, "offset": 14}
    if isinstance(panel, Map):  # a square for each query and key, bright where it is seen
        places = zip(*np.nonzero(np.isfinite(panel.z)), strict=True)
        values = [{"x": panel.at[j], "y": panel.at[i], "seen": panel.z[i, j]} for i, j in places]
        layers = [{"data": {"values": values}} | stored("map")]
    else:
        layers = [*_mark_layers(panel, width), _lines(panel)]
    return {"title": title, "width": width, "height": HEIGHT, "layer": layers}


def _lines(panel: Curves) -> Spec:
    """Return the lines; those that the others are compared with are grey."""
    labels = [line.label for line in sorted(panel.lines, key=lambda line: line.reference)]
    greys, top = sum(line.reference for line in panel.lines), max(line.y.max() for line in panel.lines)
    values = [
        {"line": line.label, "x": x, "y": y}
        for line in panel.lines
        for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)
        if panel.y_scale == "linear" or y > top / LOG_RANGE
    ]
    colors = [*(ON_WHITE * 9)[: len(labels) - greys], *[GREY] * greys]
    scales = {
        "color": {"scheme": {"name": "viridis", "extent": [0, 0.85]}} if panel.ordered else {"range": colors},
        "strokeDash": {"range": [DASHES[i % len(DASHES)] for i in range(len(labels))]},
        # each thinner than the one before: seen if they coincide
        "strokeWidth": {"range": [1.2 + 0.2 * i for i in range(len(labels))][::-1]},
    }
    legend = None if labels == [""] else {"orient": "bottom", "columns": 3}
    look = {"field": "line", "type": "ordinal", "legend": legend}
    spec: Spec = {"data": {"values": values}} | stored("curves")
    if panel.points:
        spec["mark"] = {"type": "point", "filled": True, "size": 14}
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    x["axis"]["title"], x["scale"]["type"] = panel.x_label, panel.x_scale
    y["axis"]["title"], y["scale"]["type"] = panel.y_label, panel.y_scale
    if panel.x_scale == "symlog":
        far = max(line.x.max() for line in panel.lines)
        x["axis"]["values"] = [0, *(4**k for k in range(20) if 4**k <= far)]
    spec["encoding"] |= {key: look | {"scale": {"domain": labels, **own}} for key, own in scales.items()}
    return spec


def _mark_layers(panel: Curves, width: float) -> list[Spec]:
    """Return dashed lines with their names: above at places on x, at the right on y."""
    found, layers = list[Spec](), stored("marks")
    layers["y"][1]["encoding"]["x"]["value"] = width + 3
    for channel, marks in (("x", panel.marks), ("y", panel.y_marks)):
        data = {"values": [{channel: at, "name": name} for name, at in marks.items()]}
        found += [{"data": data} | layer for layer in layers[channel]] if marks else []
    return found


# --- as text


def picture_text(picture: Picture) -> str:
    """Return title, notes and the numbers of each panel, one below the other, 80 columns wide."""
    head = [
        textwrap.fill(line, TEXT_WIDTH, subsequent_indent="  ") for line in (picture.title, *picture.notes)
    ]
    tables = [table_lines(_numbers(panel), TEXT_WIDTH) for panel in picture.panels]
    return "\n\n".join(
        "\n".join(lines) for lines in (head, *([t.plain.rstrip() for t in one] for one in tables))
    )


def _numbers(panel: Curves | Map) -> Table:
    """Return a row for each line: its values at the ends, at the marks, and at some places between them."""
    if isinstance(panel, Map):
        seen = [CellText("the last query"), CellText(f"{np.nansum(panel.z[-1]):.0f} of {panel.z.shape[1]}")]
        return Table(["", "keys seen"], [seen], panel.title)
    every = np.unique(np.concatenate([line.x for line in panel.lines]))
    powers = [4.0**k for k in range(20) if 4.0**k < every[-1]]
    between = np.linspace(every[0], every[-1], MOST_NUMBERS) if panel.x_scale == "linear" else powers
    wanted = [every[0], *between, *panel.marks.values(), every[-1]]
    at = np.unique(every[np.abs(every[:, None] - np.array(wanted)).argmin(0)]).tolist()
    at = at if len(at) <= MOST_NUMBERS else [at[0], *at[1 - MOST_NUMBERS :]]
    names = {value: name for name, value in panel.marks.items()}
    rows = []
    for line in panel.lines:
        known = zip(line.x.tolist(), line.y.tolist(), strict=True)
        texts = {x: f"{y + 0.0:,.0f}" if 100 <= abs(y) < 1e6 else f"{y + 0.0:.3g}" for x, y in known}
        rows.append([CellText(line.label), *(CellText(texts.get(x, "")) for x in at)])
    heads = [panel.x_label, *(names.get(x, f"{x:g}") for x in at)]
    return Table(heads, rows, f"{panel.title}: {panel.y_label}")
