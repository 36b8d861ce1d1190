"""Lines: the loss, or its change against the loss at T, over the context."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from posenc.core.errors import plural
from posenc.report.chart import (
    FINE,
    Chart,
    Panel,
    Point,
    RowChannels,
    RowNames,
    band_ends,
    change_axis,
    change_scale,
    point_size,
    row_channels,
    selections,
    short_number,
    source_note,
    tooltip,
    visible_if_chosen,
)
from posenc.report.texts import unit_text
from posenc.report.vega import FAINT, GRID, INK, PAGE_CONFIG, SCHEMA, Spec, nominal, quantitative
from posenc.results.cells import Column
from posenc.results.comparison import Comparison

MANY_POINTS = 16  # in a line: with more than these none is marked
MOST_BANDS = 12  # lines with bands: those of more would hide each other
MOST_TICKS = 8
DOMAIN_FACTOR = 1.2  # the width of the axis of changes over that of the changes


def loss_chart(panels: Sequence[Panel], names: RowNames) -> Chart | None:
    """Return the loss over the context, with the trigram reference; None without a number."""
    points = _points(panels, names, is_change=False)
    if not _has_values(points):
        return None
    header = panels[0].comparison.header
    is_perplexity = header.metric == "ppl"
    unit = unit_text(header)
    references = []
    for panel in panels:
        reference = panel.comparison.header.reference
        if reference is not None and reference.mean is not None:
            references.append({"panel": panel.title, "level": reference.mean, "name": "trigram"})
    y = quantitative(
        "y",
        scale={"zero": False, "nice": False, "padding": 6, "type": "log" if is_perplexity else "linear"},
        axis={"tickCount": 6, "minExtent": 28, "title": unit if is_perplexity else f"loss ({unit})"},
    )
    title = "Loss by position" if _has_curves(panels) else "Loss against context"
    return _line_chart(panels, names, title, points, references, y, notes=[])


def change_chart(panels: Sequence[Panel], names: RowNames) -> Chart | None:
    """Return the change against the loss at T, with the margins of the verdicts; None without a number."""
    points = _points(panels, names, is_change=True)
    if not any(point["x"] != 1 and point["y"] is not None for point in points):
        return None
    margins = panels[0].comparison.header.margins
    units = [_per_bit(panel.comparison) for panel in panels]
    known_units = [unit for unit in units if unit is not None]
    fine = max((unit * margins.same for unit in known_units), default=FINE)
    low, high = _domain(points, fine)
    levels: list[Point] = []
    for panel, unit in zip(panels, units, strict=True):
        if unit is None:
            continue
        same = margins.same * unit
        collapsed = margins.collapsed * unit
        levels.append({"panel": panel.title, "bottom": -same, "top": same})
        if collapsed < high:
            levels.append({"panel": panel.title, "level": collapsed, "name": "collapsed"})
    unit_name = unit_text(panels[0].comparison.header)
    change = "rise over" if _has_curves(panels) else "change against"
    y = quantitative(
        "y",
        scale={"zero": False, **change_scale(low, high, fine)},
        axis={
            "tickCount": 6,
            "minExtent": 28,
            "title": f"{change} T ({unit_name})",
            **change_axis(low, high),
        },
    )
    notes = ["Above 0: worse than at T."]
    if known_units:
        notes.append(f"Grey: same, within {margins.same:g} {margins.unit}.")
    notes.append(f"Logarithmic beyond {fine:.2g}.")
    title = "Rise over the mean from T/2 to T" if _has_curves(panels) else "Change against T"
    return _line_chart(panels, names, title, points, levels, y, notes)


def _line_chart(
    panels: Sequence[Panel],
    names: RowNames,
    title: str,
    points: Sequence[Point],
    levels: Sequence[Point],
    y: Spec,
    notes: Sequence[str],
) -> Chart:
    rows = _rows_as_they_end(points)
    has_bands = len(rows) <= MOST_BANDS
    has_markers = len(points) <= MANY_POINTS * len(rows) * len(panels)
    columns = [column for panel in panels for column in panel.comparison.columns]
    x_name = "position" if _has_curves(panels) else "context"
    x = quantitative(
        "x",
        scale={"nice": False, "type": "log", "base": 2, "padding": 12},
        axis={"grid": False, **context_axis(columns, x_name)},
    )
    channels = row_channels(rows, names)
    layers = _level_layers()
    is_on_both_sides = (
        min(column.multiple for column in columns) < 1 < max(column.multiple for column in columns)
    )
    if is_on_both_sides:
        layers += _layers_at_t()
    if has_bands:
        layers.append(_band_layer(channels))
    layers += [_line_layer(channels), _marker_layer(channels, has_markers)]
    bands = _bands_note(panels) if has_bands else "Without bands: too many lines."
    note = " ".join(part for part in (source_note(panels), *notes, bands) if part)
    spec = {
        "$schema": SCHEMA,
        "config": PAGE_CONFIG,
        "data": {"values": [*points, *levels]},
        "encoding": {"x": x, "y": y},
        "layer": layers,
    }
    return Chart(title, spec, [panel.title for panel in panels], rows, note)


# --- the data


def _points(panels: Sequence[Panel], names: RowNames, is_change: bool) -> list[Point]:
    return [point for panel in panels for point in _points_of(panel, names, is_change)]


def _points_of(panel: Panel, names: RowNames, is_change: bool) -> Iterator[Point]:
    """Yield the rows' means by multiple of T, or their changes against T."""
    comparison = panel.comparison
    for row in comparison.rows:
        name = names.name(row)
        for column, cell in zip(comparison.columns, row.cells, strict=True):
            value = cell.change if is_change else cell.mean
            spread = cell.change_spread if is_change else cell.spread
            point: Point = {"panel": panel.title, "row": name, "x": short_number(column.multiple), "y": None}
            if value is not None and math.isfinite(value):
                point["y"] = short_number(value)
                point["text"] = tooltip(name, cell, comparison.header.metric)
                ends = band_ends(cell, value, spread)
                if ends is not None:
                    point["low"], point["high"] = ends
            yield point


def _has_values(points: Sequence[Point]) -> bool:
    return any(point["y"] is not None for point in points)


def _has_curves(panels: Sequence[Panel]) -> bool:
    return any(row.curve for panel in panels for row in panel.comparison.rows)


def _rows_as_they_end(points: Sequence[Point]) -> list[str]:
    """Return the rows that have a value, the one that ends highest first."""
    # points go by rising context, so that of each row the last value stays
    last_value = {point["row"]: point["y"] for point in points if point["y"] is not None}
    return sorted(last_value, key=lambda row: -last_value[row])


def _domain(points: Sequence[Point], fine: float) -> tuple[float, float]:
    values = [-fine, fine]
    for point in points:
        values += [point[key] for key in ("y", "low", "high") if point.get(key) is not None]
    return DOMAIN_FACTOR * min(values), DOMAIN_FACTOR * max(values)


def _per_bit(comparison: Comparison) -> float | None:
    """Return one bit per byte in the comparison's metric; None for perplexities or without bytes."""
    if comparison.header.metric == "bpb":
        return 1.0
    return comparison.header.nats_per_bpb if comparison.header.metric == "nats" else None


def _bands_note(panels: Sequence[Panel]) -> str:
    """Return what the bands are; empty without any."""
    cells = [cell for panel in panels for row in panel.comparison.rows for cell in row.cells]
    counts = sorted({cell.seeds for cell in cells if cell.spread is not None})
    if len(counts) == 1:
        return f"Bands: standard deviation over {plural(counts[0], 'seed')}."
    if counts:
        return f"Bands: standard deviation over {counts[0]} to {counts[-1]} seeds."
    return "Bands: 95% CI over documents (1 seed)." if any(cell.change_ci95 for cell in cells) else ""


# --- the axis


def context_axis(columns: Sequence[Column], name: str) -> Spec:
    """Return a tick for each window, with its tokens where all panels agree; of many, powers of two."""
    windows: dict[float, set[int | None]] = defaultdict(set)
    for column in columns:
        windows[float(f"{column.multiple:.6g}")].add(column.window)
    ticks = sorted(windows)
    if len(ticks) > MOST_TICKS:
        ticks = [tick for tick in ticks if _is_power_of_two(tick)][-MOST_TICKS:]
    in_tokens = all(len(tokens) == 1 and None not in tokens for tokens in windows.values())
    labels = {}
    for tick in ticks:
        (window, *_) = windows[tick]
        labels[f"{tick:g}"] = length_heads(tick, window if in_tokens else None)
    unit = "tokens, multiples of T" if in_tokens else "multiples of T"
    return {
        "title": f"{name} ({unit})",
        "values": ticks,
        "labelExpr": f"{json.dumps(labels)}[toString(datum.value)]",
        "labelFlush": False,
        "labelOverlap": True,
        "labelSeparation": 4,
    }


def _is_power_of_two(multiple: float) -> bool:
    octave = math.log2(multiple)
    return abs(octave - round(octave)) < 0.02  # up to the rounding to whole positions


def length_heads(multiple: float, window: int | None) -> list[str]:
    """Return the lines of a tick: the tokens where they are known, and the multiple of T."""
    head = f"{multiple:.3g}x"
    if window is None:
        return [head]
    is_long = window >= 10_000 and window % 1024 == 0
    return [f"{window // 1024}k" if is_long else str(window), head]


# --- the layers, from the back to the front


def _level_layers() -> list[Spec]:
    """Return the grey band of `same`, and the levels with their names."""
    at_level = {"y": quantitative("level")}
    with_level = [{"filter": "isValid(datum.level)"}]
    return [
        {
            "mark": {"type": "rect", "color": GRID, "opacity": 0.6},
            "transform": [{"filter": "isValid(datum.top)"}],
            "encoding": {"x": None, "y": quantitative("bottom"), "y2": {"field": "top"}},
        },
        {
            "mark": {"type": "rule", "color": FAINT, "strokeDash": [1, 3]},
            "transform": with_level,
            "encoding": {"x": None, **at_level},
        },
        {
            "mark": {
                "type": "text",
                "color": FAINT,
                "align": "left",
                "baseline": "bottom",
                "dx": 2,
                "dy": -1,
            },
            "transform": with_level,
            "encoding": {"x": {"value": 0}, **at_level, "text": nominal("name")},
        },
    ]


def _layers_at_t() -> list[Spec]:
    """Return a dashed line at T with its name."""
    at_t = {"values": [{"x": 1.0}]}
    text = {"type": "text", "text": "T", "color": INK, "align": "left", "baseline": "top", "dx": 4}
    return [
        {
            "mark": {"type": "rule", "color": FAINT, "strokeDash": [2, 3]},
            "data": at_t,
            "encoding": {"y": None},
        },
        {"mark": text, "data": at_t, "encoding": {"y": {"value": 2}, "x": quantitative("x")}},
    ]


def _band_layer(channels: RowChannels) -> Spec:
    return {
        "mark": {"type": "area", "clip": True},
        "transform": [{"filter": "isValid(datum.low)"}],
        "encoding": {
            "y": quantitative("low"),
            "y2": {"field": "high"},
            "color": channels.color,
            "opacity": visible_if_chosen(0.16, otherwise=0),
        },
    }


def _line_layer(channels: RowChannels) -> Spec:
    return {
        # A missing value is a gap: a line across it would show what nobody measured.
        "mark": {"type": "line", "clip": True, "invalid": "break-paths-show-domains"},
        "transform": [{"filter": "isValid(datum.row)"}],
        "encoding": {
            "color": channels.color,
            "strokeDash": channels.dash,
            "opacity": visible_if_chosen(1),
        },
    }


def _marker_layer(channels: RowChannels, has_markers: bool) -> Spec:
    return {
        "params": selections(),
        "mark": {"type": "point", "clip": True, "filled": True},
        "transform": [{"filter": "isValid(datum.y)"}],
        "encoding": {
            "color": channels.color,
            "shape": channels.shape,
            "opacity": visible_if_chosen(1),
            "size": point_size(55 if has_markers else 0),
            "tooltip": nominal("text"),
        },
    }
