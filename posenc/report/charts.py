"""Build Vega-Lite charts of results, for the page and, drawn by vl-convert, as PNG, SVG or PDF.

`chart.json` has the layers. Row names are data of a chart and never part of an expression. Colours are names
of the page's style sheet, which become plain colours in a file; `paper` is what else differs there.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vl_convert

from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.errors import UserError, visible
from posenc.core.paths import output_file
from posenc.report.captions import own_text, unit_of
from posenc.report.series import (
    Names,
    Point,
    band_is,
    context_points,
    grid_points,
    panel_titles,
    per_bit,
    source,
    use_points,
)
from posenc.results.comparison import Column, Comparison
from posenc.results.rows import short_note
from posenc.results.schema import RECALL, printed, printed_change

PLOTS = {
    "context": "loss against context",
    "change": "change against the loss at T, against context",
    "heatmap": "change against T by encoding and context",
    "recall": "share of planted values found, by window and distance",
    "use": "harm and use: recall against the change of the loss, in the longest window",
}
NO_RECALL = "no run was asked to recall: posenc train experiment=recall"
KIND = "context"  # where none is asked for
KINDS = {RECALL: "recall"}  # of a protocol, instead
FORMATS = ("png", "svg", "pdf")
TICKS = sorted({s * t for t in (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10) for s in (-1, 1)})
SIGNED = {"format": "~g", "labelExpr": "(datum.value > 0 ? '+' : '') + datum.label"}  # of their axis
FINE = 0.02  # changes: about linear up to here, logarithmic beyond
DENSE = 16  # points of a line; of more none is marked
MOST_TICKS = 8
MOST_BANDS = 12  # lines: the bands of more would hide each other
DARKEST = 1.16  # of a shade: the ends of the colours are too dark for numbers
WIDTH, DPI = 396, 200  # points of a figure, 5.5 inches; of a PNG
HEIGHT = 150  # points, of a panel of lines
TALL = 230  # points, of one with names beside its points
NARROW_PANEL = 150  # points, with its axis
CHARACTER = 3.4  # points, the width of one of small text

Spec = dict[str, Any]
Box = tuple[float, float, float, float]  # left, top, right, bottom, in points
Panels = Sequence[tuple[Comparison, str]]  # with their titles


@dataclass
class Chart:
    """A chart of one or several panels; `spec` draws all of `data` as if it were one."""

    title: str
    spec: Spec
    panels: list[str]
    rows: list[str]  # of the legend: those with a number
    note: str  # below a figure
    own_scales: bool = False  # the panels do not share y
    named: bool = False  # in a file of one panel each point has its name beside it, instead of a legend


def chart(kind: str, comparisons: Sequence[Comparison], names: Names) -> Chart | None:
    """Return the chart of a kind (a key of PLOTS), a panel for each comparison; None without a number."""
    panels = list(zip(comparisons, panel_titles(comparisons), strict=True))
    if make := {"heatmap": _heatmap, "recall": _recall, "use": _use}.get(kind):
        return make(panels, names)
    return _context(panels, names, change=kind == "change")


def _context(panels: Panels, names: Names, change: bool) -> Chart | None:
    """Return lines of the loss, or of its change, with bands; a legend of the rows that have a number."""
    comparisons, titles = [one for one, _ in panels], [title for _, title in panels]
    points = [point for one, title in panels for point in context_points(one, names, title, change)]
    last = {point["row"]: point["y"] for point in points if point["y"] is not None}
    if not last or (change and all(point["x"] == 1 or point["y"] is None for point in points)):
        return None
    spec, rows = template("lines"), sorted(last, key=lambda row: -last[row])  # as the lines end
    _style(spec, rows, names)
    *below, band, line, dots = spec["layer"]
    if len(points) > DENSE * len(rows) * len(panels):
        dots["encoding"]["size"]["value"] = 0
    few = len(rows) <= MOST_BANDS
    spec["layer"] = [*below, *([band] if few else []), line, dots]
    spec["data"] = {"values": points}
    curves = any(row.curve for one in comparisons for row in one.rows)
    columns = [column for one in comparisons for column in one.columns]
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    x["axis"] |= _context_axis(columns, "position" if curves else "context")
    x["scale"] |= {"type": "log", "base": 2, "padding": 12}
    if not min(one.multiple for one in columns) < 1 < max(one.multiple for one in columns):
        spec["layer"] = [layer for layer in spec["layer"] if "data" not in layer]  # no line at T
    unit, perplexity = unit_of(comparisons[0].header), comparisons[0].header.metric == "ppl"
    words: list[str] = []
    if change:
        title = "Rise over the mean from T/2 to T" if curves else "Change against T"
        y["axis"]["title"] = f"{'rise over' if curves else 'change against'} T ({unit})"
        words = _margins(spec, panels)
    else:
        title = "Loss by position" if curves else "Loss against context"
        y["axis"]["title"] = unit if perplexity else f"loss ({unit})"
        y["scale"] |= {"padding": 6, "type": "log" if perplexity else "linear"}
        for one, panel in panels:
            if one.header.reference is not None and one.header.reference.mean is not None:
                level = one.header.reference.mean
                points.append({"panel": panel, "level": level, "name": "trigram"})
    words = [source(comparisons), *words, band_is(comparisons) if few else "Without bands: too many lines."]
    return Chart(title, spec, titles, rows, " ".join(filter(None, words)))


def stored(name: str) -> Any:
    """Return a part of chart.json; `shapes` are the markers by letter, paths in a square from -1 to 1."""
    return json.loads(own_text("chart.json"))[name]


def template(name: str) -> Spec:
    """Return one of the charts of chart.json, with the looks that all share."""
    return {"$schema": stored("$schema"), "config": stored("config"), **stored(name)}


def _style(spec: Spec, rows: list[str], names: Names) -> None:
    """Give each row its colour, dashes and shape, in the layers where these are left open ({})."""
    styles, paths = [names.styles[row] for row in rows], stored("shapes")
    by_row = {
        "color": [f"var(--s{names.number(row)})" for row in rows],
        "strokeDash": [[round(2 * part, 1) for part in style.dash] or [1, 0] for style in styles],
        "shape": [paths[style.marker] for style in styles],
    }
    for layer in spec["layer"]:
        for channel in (one for one in by_row if layer["encoding"].get(one) == {}):
            scale = {"domain": rows, "range": by_row[channel]}
            layer["encoding"][channel] = {"field": "row", "type": "nominal", "scale": scale}


def _margins(spec: Spec, panels: Panels) -> list[str]:
    """Make y logarithmic beyond the margin of `same`, mark the margins, and say so."""
    points, y = spec["data"]["values"], spec["encoding"]["y"]
    margins, units = panels[0][0].header.margins, [per_bit(one) for one, _ in panels]
    fine = max((unit * margins.same for unit in units if unit), default=FINE)
    values = [point[key] for point in points for key in ("y", "low", "high") if point.get(key) is not None]
    low, high = 1.2 * min(*values, -fine), 1.2 * max(*values, fine)
    y["scale"] |= {"type": "symlog", "constant": fine, "domain": [low, high]}
    y["axis"] |= SIGNED | {"values": [t for t in TICKS if low <= t <= high]}
    for (_, title), unit in zip(panels, units, strict=True):
        if unit is not None:
            same, collapsed = margins.same * unit, margins.collapsed * unit
            points.append({"panel": title, "bottom": -same, "top": same})
            if collapsed < high:
                points.append({"panel": title, "level": collapsed, "name": "collapsed"})
    grey = [f"Grey: same, within {margins.same:g} {margins.unit}."] if any(units) else []
    return ["Above 0: worse than at T.", *grey, f"Logarithmic beyond {fine:.2g}."]


def _context_axis(columns: Sequence[Column], name: str) -> Spec:
    """Return a tick for each window length, with its tokens where they are one; of many, powers of two."""
    windows: dict[float, set[int | None]] = {}
    for column in sorted(columns, key=lambda one: one.multiple):
        windows.setdefault(float(f"{column.multiple:.6g}"), set()).add(column.window)
    ticks = list(windows)
    if len(ticks) > MOST_TICKS:
        ticks = [tick for tick in ticks if abs(math.log2(tick) - round(math.log2(tick))) < 0.02][-MOST_TICKS:]
    one_length = all(len(some) == 1 and None not in some for some in windows.values())
    labels = {f"{tick:g}": _heads(tick, next(iter(windows[tick])) if one_length else None) for tick in ticks}
    return {
        "title": f"{name} ({'tokens, ' if one_length else ''}multiples of T)",
        "values": ticks,
        "labelExpr": f"{json.dumps(labels)}[toString(datum.value)]",
        "labelFlush": False,
        "labelOverlap": True,
        "labelSeparation": 4,
    }


def _heads(multiple: float, window: int | None) -> list[str]:
    tokens = f"{window // 1024}k" if window and window >= 10_000 and window % 1024 == 0 else str(window)
    return [*([] if window is None else [tokens]), f"{multiple:.3g}x"]


def _heatmap(panels: Panels, names: Names) -> Chart | None:
    """Return cells coloured by the change, each with its number or its reason; at T the loss itself."""
    spec, points = template("heatmap"), []
    changes = [abs(c.change) for one, _ in panels for row in one.rows for c in row.cells if c.change]
    most = math.log1p(max((change for change in changes if math.isfinite(change)), default=1.0) / FINE)
    heads: dict[str, list[str]] = {}
    for comparison, title in panels:
        metric = comparison.header.metric
        for row in comparison.rows:
            for column, cell in zip(comparison.columns, row.cells, strict=True):
                key = f"{column.multiple:g}"
                heads[key] = _heads(column.multiple, column.window if len(panels) == 1 else None)
                point: Point = {"panel": title, "row": names.of(row), "column": key, "shade": None}
                if cell.mean is None:
                    point |= {"of": "nothing", "text": short_note(cell.note or "")[:8]}
                elif cell.change is None or (row.extend is None and column.multiple == 1):
                    text = printed(cell.mean, metric)
                    point |= {"of": "loss", "text": f"({text})" if cell.change is None else text}
                else:  # as many decades to worse as to better: 0 is white
                    shade = math.log1p(min(abs(cell.change), 1e30) / FINE) / most / DARKEST
                    text = printed_change(cell.change, metric).replace("-", "−")
                    point |= {"of": "change", "shade": math.copysign(shade, cell.change), "text": text}
                points.append(point)
    if not points:
        return None
    x = spec["encoding"]["x"]
    x["sort"] = sorted(heads, key=float)
    above = 4 + 9 * (max(map(len, heads.values())) - 1)  # points: a head of two lines hangs down
    x["axis"] |= {"labelExpr": f"{json.dumps(heads)}[datum.value]", "labelPadding": above}
    comparisons, titles = [one for one, _ in panels], [title for _, title in panels]
    words = f"Change against the loss at T in {unit_of(comparisons[0].header)}: red is worse, blue is better"
    note = f"{source(comparisons)} {words}; at T the loss itself."
    return Chart("Change against T", spec | {"data": {"values": points}}, titles, [], note, own_scales=True)


def _recall(panels: Panels, names: Names) -> Chart | None:
    """Return a panel a row: windows below each other, distances beside each other, coloured by the share."""
    points = [point for one, title in panels for point in grid_points(one, names, title)]
    if not points:
        return None
    spec = template("heatmap")
    color = spec["layer"][0]["encoding"]["color"]
    color["scale"] = {"scheme": "blues", "domain": [0, DARKEST]}
    for channel, field_, name in (("x", "column", "distance"), ("y", "row", "window")):
        axis = spec["encoding"][channel]
        axis["sort"] = sorted({point[field_] for point in points}, key=int)
        axis["axis"] |= {"title": f"{name} (tokens)", "labelColor": "var(--faint)"}
    measured = source([one for one, _ in panels])
    words = f"Per cent of planted values found at a distance, in a window; {measured}"
    titles = list(dict.fromkeys(point["panel"] for point in points))
    return Chart("Recall", spec | {"data": {"values": points}}, titles, [], words)


def _use(panels: Panels, names: Names) -> Chart | None:
    """Return a point a row: harm to the right, use upward; the change is logarithmic beyond FINE."""
    found = [use_points(one, names, title) for one, title in panels]
    points, multiples = [point for _, some in found for point in some], {at for at, some in found if some}
    if not points:
        return None
    spec, rows = template("use"), list(dict.fromkeys(point["row"] for point in points))
    _style(spec, rows, names)
    at = "the longest window" if len(multiples) > 1 else f"{multiples.pop():g}x"
    x, y = spec["encoding"]["x"], spec["encoding"]["y"]
    ends = [point[key] for point in points for key in ("x", "left", "right") if key in point]
    low, high = 1.3 * min(*ends, -FINE), 1.3 * max(*ends, FINE)
    x["scale"] |= {"type": "symlog", "constant": FINE, "domain": [low, high]}
    x["axis"] |= SIGNED | {"values": [t for t in TICKS if low <= t <= high], "labelOverlap": True}
    x["axis"]["title"] = f"harm: change of the loss at {at} against T ({unit_of(panels[0][0].header)})"
    y["axis"]["title"] = f"use: recall at {at} (%)"
    rule = "Top left: far text is used and does no harm; bottom left: it is not used; bottom right: it harms."
    words = [source([one for one, _ in panels]), rule, "Recall with its 95% CI."]
    if weak := [point["row"] for point in points if not point["learned"]]:
        words.append(f"Did not learn to recall: {', '.join(dict.fromkeys(weak))}.")
    titles = list(dict.fromkeys(point["panel"] for point in points))
    data = {"data": {"values": points}}
    return Chart("Harm and use", spec | data, titles, rows, " ".join(words), named=True)


def _beside(spec: Spec, width: float) -> Spec:
    """Return a layer with the names of the points of `_use`, each where it covers the least."""
    left, right = (_symlog(end) for end in spec["encoding"]["x"]["scale"]["domain"])
    scale, values, named = width / (right - left), spec["data"]["values"], []
    at = [((_symlog(one["x"]) - left) * scale, TALL * (1 - one["y"] / 100)) for one in values]
    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in at]  # by points, and by the intervals of their recall
    for (x, _), one in zip(at, values, strict=True):
        taken.append((x - 1, TALL * (1 - one["high"] / 100), x + 1, TALL * (1 - one["low"] / 100)))
    for (x, y), one in zip(at, values, strict=True):
        long, costs = CHARACTER * len(one["row"]), {}
        for down in range(-36, 37, 6):
            for start in (x + 5, x - 5 - long):
                box = (start, y + down - 3.5, start + long, y + down + 3.5)
                outside = 7 * long - _covered(box, [(0, 0, width, TALL)])
                costs[box] = _covered(box, taken) + 10 * outside + 2 * abs(down)
        taken.append(min(costs, key=lambda box: costs[box]))
        bent = left + taken[-1][0] / scale
        change = math.copysign(FINE * math.expm1(abs(bent)), bent)
        named.append({"row": one["row"], "x": change, "y": 100 * (1 - (taken[-1][1] + 3.5) / TALL)})
    color = spec["layer"][-1]["encoding"]["color"]
    mark = {"type": "text", "align": "left", "baseline": "middle", "fontSize": 6}
    encoding = {"text": {"field": "row", "type": "nominal"}, "color": color}
    return {"data": {"values": named}, "mark": mark, "encoding": encoding}


def _covered(box: Box, others: Sequence[Box]) -> float:
    """Return how much of a box others cover."""
    sides = [[min(box[i + 2], one[i + 2]) - max(box[i], one[i]) for i in (0, 1)] for one in others]
    return sum(max(0.0, wide) * max(0.0, high) for wide, high in sides)


def _symlog(change: float) -> float:
    return math.copysign(math.log1p(abs(change) / FINE), change)


# --- files


def save_plot(path: Path, kind: str, comparisons: Sequence[Comparison]) -> None:
    """Write a figure as its suffix says, whole or not at all. Raises UserError; RunError for a full disk."""
    place = check_plot(path, kind)
    write_bytes_atomic(place, plot_bytes(path.suffix[1:].lower(), kind, comparisons))


def check_plot(path: Path, kind: str) -> Path:
    """Return where the figure will be. Raises UserError for a wrong suffix, folder or kind."""
    if path.suffix[1:].lower() not in FORMATS:
        allowed = ", ".join(f".{name}" for name in FORMATS)
        raise UserError("--plot", path, "its ending names the format", allowed=allowed)
    place = output_file("--plot", path)
    check_kind(kind)
    return place


def check_kind(kind: str) -> None:
    """Raise UserError for a kind that is not in PLOTS."""
    if kind not in PLOTS:
        raise UserError("--plot-kind", kind, "no such plot", allowed=list(PLOTS))


def plot_bytes(format: str, kind: str, comparisons: Sequence[Comparison]) -> bytes:
    """Return a file's content, the same bytes for the same runs; `format` is one of FORMATS."""
    names = Names(comparisons)
    found = chart(kind, comparisons, names)
    if found is None:
        problem = NO_RECALL if kind in ("recall", "use") else "no run has a number yet"
        raise UserError("--plot-kind", kind, problem)
    columns = 1 if kind == "heatmap" else max(1, min(len(found.panels), WIDTH // NARROW_PANEL))
    inner = WIDTH / columns  # too wide, so that it is not the notes that are measured
    for _ in range(2):  # how wide axes and names are is known once they are drawn
        spec = _on_paper(found, names, inner, columns)
        svg: str = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
        wide = re.findall(r' width="([\d.]+)"', svg)[0]
        inner = max(40.0, inner + (WIDTH - float(wide)) / columns)
    return image(svg, format)


def image(svg: str, format: str) -> bytes:
    """Return a drawn chart as one of FORMATS, the same bytes for the same chart."""
    ids = {name: f"clip{i}" for i, name in enumerate(dict.fromkeys(re.findall(r'id="(clip\d+)"', svg)))}
    # Vega counts from figure to figure
    svg = re.sub(r"\bclip\d+\b", lambda one: ids.get(one[0], one[0]), svg)
    if format == "svg":
        return re.sub(r' (width|height)="([\d.]+)"', r' \1="\2pt"', svg, count=2).encode()
    if format == "pdf":
        pdf = bytes(vl_convert.svg_to_pdf(svg))  # its names come in any order
        return re.sub(rb"(?: +/\w+ \d+ 0 R\n)+", lambda one: b"".join(sorted(one[0].splitlines(True))), pdf)
    return bytes(vl_convert.svg_to_png(svg, ppi=DPI))


def on_paper(spec: Spec, colors: Mapping[str, str]) -> Spec:
    """Return a chart with plain colours for those of the page's style sheet, and with small text."""
    paper = stored("paper")
    colors = paper["colors"] | colors
    plain: Spec = json.loads(re.sub(r"var\(--(\w+)\)", lambda one: colors[one[1]], json.dumps(spec)))
    for key, value in paper["config"].items():
        plain["config"][key] = plain["config"].get(key, {}) | value if isinstance(value, dict) else value
    return plain


def _on_paper(found: Chart, names: Names, inner: float, columns: int) -> Spec:
    """Lay a chart out for a file: panels, the legend above, notes below, small text, its own colours.

    `inner`: points of a panel without its axis.
    """
    spec = on_paper(found.spec, {f"s{i}": style.color for i, style in enumerate(names.styles.values())})
    config = spec.pop("config")
    entry = 24 + CHARACTER * max(map(len, found.rows), default=1)
    config["legend"]["columns"] = max(1, int(WIDTH / entry))
    if size := spec["layer"][-1]["encoding"].get("size"):
        size["value"] = min(size["value"], 26)
    words = textwrap.wrap(visible(found.note), int(WIDTH / CHARACTER))
    title = stored("paper")["title"] | {"text": words}
    shared = {key: spec.pop(key) for key in ("$schema", "data")} | {"config": config, "title": title}
    inside = {"width": inner, "height": HEIGHT} | spec
    if len(found.panels) == 1 and found.named:
        config["legend"]["disable"] = True
        names_of_points = _beside(inside | shared, inner)
        return shared | inside | {"height": TALL, "layer": [*spec["layer"], names_of_points]}
    if len(found.panels) == 1:
        return shared | inside
    facet = {"field": "panel", "type": "nominal", "sort": found.panels}
    resolve = {"axis": {"x": "independent", "y": "independent"}}
    resolve |= {"scale": {"x": "shared", "y": "independent"}} if found.own_scales else {}
    return shared | {"facet": facet, "columns": columns, "spec": inside, "spacing": 14, "resolve": resolve}
