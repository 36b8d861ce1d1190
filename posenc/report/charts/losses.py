"""Lines: the loss, or its change against the loss at T, over the context."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import altair as alt

from posenc.core.errors import plural
from posenc.report.cell_texts import has_curves
from posenc.report.charts.base import (
    FINE,
    LABEL_EXTENT,
    Chart,
    Panel,
    RowChannels,
    RowNames,
    band_ends,
    change_axis,
    change_scale,
    short_number,
    source_sentence,
    tooltip,
)
from posenc.report.charts.looks import Look, data_of
from posenc.report.texts import unit_text
from posenc.results.cells import Cell, Column, is_power_of_two
from posenc.results.headers import Margins
from posenc.results.rows import Row

HEIGHT = 150  # points, of a panel in a file
MANY_POINTS = 16  # in a line: with more than these none is marked
MOST_BANDS = 12  # lines with bands: those of more would hide each other
MOST_TICKS = 8
DOMAIN_FACTOR = 1.2  # the axis of changes is so many times as wide as the range of the changes


@dataclass(frozen=True)
class LinePoint:
    """A row's value in a window."""

    panel: str
    row: str
    x: float  # the window as a multiple of T
    y: float | None  # None is a gap in the line
    low: float | None = None  # ends of the band
    high: float | None = None
    text: str | None = None  # shown while the point is pointed at


@dataclass(frozen=True)
class Level:
    """A dotted line across a panel with its name, such as that of a reference."""

    panel: str
    level: float
    name: str


@dataclass(frozen=True)
class Margin:
    """The grey band of a panel in which a change is called `same`."""

    panel: str
    bottom: float
    top: float


@dataclass(frozen=True)
class YAxis:
    """The axis of the values."""

    scale: alt.Scale
    axis: alt.Axis

    def channel(self, field: str) -> alt.Y:
        """Return the channel that draws a field along this axis."""
        return alt.Y(f"{field}:Q", scale=self.scale, axis=self.axis)


def loss_chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    """Return the loss over the context, with its reference; None without a number."""
    points = [point for panel in panels for point in _losses(panel, names)]
    if all(point.y is None for point in points):
        return None
    header = panels[0].comparison.header
    is_perplexity = header.metric == "ppl"
    unit = unit_text(header)
    references = []
    for panel in panels:
        reference = panel.comparison.header.reference
        if reference is not None and reference.mean is not None:
            references.append(Level(panel.title, reference.mean, reference.protocol))
    y = YAxis(
        # A perplexity is the exponential of a loss, so that a logarithmic axis shows it as the loss is shown.
        scale=alt.Scale(type="log" if is_perplexity else "linear", zero=False, nice=False, padding=6),
        axis=alt.Axis(title=unit if is_perplexity else f"loss ({unit})", tickCount=6, minExtent=LABEL_EXTENT),
    )
    rows = _rows_as_they_end(points)
    return Chart(
        title="Loss by position" if _has_curves(panels) else "Loss against context",
        layers=_line_chart(panels, rows, points, references, y, names, look),
        panels=[panel.title for panel in panels],
        rows=rows,
        caption=f"{source_sentence(panels)} {_bands_sentence(panels, rows)}".rstrip(),
        height=HEIGHT,
        has_markers=_has_markers(points, rows, panels),
    )


def change_chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    """Return the change against the loss at T, with the margins of the verdicts; None without a number."""
    points = [point for panel in panels for point in _changes(panel, names)]
    # A model as trained has no change at T, so points at T alone are no chart.
    if all(point.x == 1 or point.y is None for point in points):
        return None
    header = panels[0].comparison.header
    margins = header.margins
    # The margins are in bits per byte, and the axis has the unit of the metric.
    bits = {panel.title: panel.comparison.header.one_bit for panel in panels}
    known_bits = [bit for bit in bits.values() if bit is not None]
    # The axis bends where `same` ends, so that what is within the margin looks as small as it is called.
    fine = max((bit * margins.same for bit in known_bits), default=FINE)
    low, high = _domain(points, fine)
    levels = _margins_of_verdicts(bits, margins, high)
    are_curves = _has_curves(panels)
    quantity = "rise over" if are_curves else "change against"
    title = f"{quantity} T ({unit_text(header)})"
    y = YAxis(
        scale=change_scale(low, high, fine),
        axis=change_axis(title, low, high, tickCount=6, minExtent=LABEL_EXTENT),
    )
    rows = _rows_as_they_end(points)
    sentences = [source_sentence(panels), "Above 0: worse than at T."]
    if known_bits:
        sentences.append(f"Grey: same, within {margins.same:g} {margins.unit}.")
    sentences += [f"Logarithmic beyond {fine:.2g}.", _bands_sentence(panels, rows)]
    return Chart(
        title="Rise over the mean from T/2 to T" if are_curves else "Change against T",
        layers=_line_chart(panels, rows, points, levels, y, names, look),
        panels=[panel.title for panel in panels],
        rows=rows,
        caption=" ".join(sentences).rstrip(),
        height=HEIGHT,
        has_markers=_has_markers(points, rows, panels),
    )


def _margins_of_verdicts(
    bits: Mapping[str, float | None], margins: Margins, top_of_axis: float
) -> list[Level | Margin]:
    """Return the grey band of `same` and the line of `collapsed` for each panel whose metric has them.

    `bits` has one bit per byte in the metric of each panel, by its title.
    """
    levels: list[Level | Margin] = []
    for panel, bit in bits.items():
        if bit is None:
            continue
        levels.append(Margin(panel, -margins.same * bit, margins.same * bit))
        # The axis does not grow for this line, and Vega would draw it above the panel.
        if margins.collapsed * bit < top_of_axis:
            levels.append(Level(panel, margins.collapsed * bit, "collapsed"))
    return levels


# --- the data


def _losses(panel: Panel, names: RowNames) -> Iterator[LinePoint]:
    """Yield the means of the rows by multiple of T."""
    comparison = panel.comparison
    for row in comparison.rows:
        for cell in row.cells:
            spread = _spread(row, cell, cell.spread)
            point = _line_point(panel, names.name(row), cell, cell.mean, spread)
            yield _above_zero(point) if comparison.header.metric == "ppl" else point


def _changes(panel: Panel, names: RowNames) -> Iterator[LinePoint]:
    """Yield the changes of the rows against T by multiple of T."""
    comparison = panel.comparison
    for row in comparison.rows:
        for cell in row.cells:
            spread = _spread(row, cell, cell.change_spread)
            yield _line_point(panel, names.name(row), cell, cell.change, spread)


def _spread(row: Row, cell: Cell, spread: float | None) -> float | None:
    """Return the standard deviation over seeds, for the band of a line. At T it is 0 for a single seed.

    Elsewhere the band of a single seed is the interval of its change against T. At T there is no change, so
    the band has no width.
    """
    if spread is None and cell.multiple == 1 and row.extend is None:
        return 0.0
    return spread


def _line_point(panel: Panel, name: str, cell: Cell, value: float | None, spread: float | None) -> LinePoint:
    x = short_number(cell.multiple)
    # JSON has no infinity, and an infinite perplexity would be no place on an axis.
    if value is None or not math.isfinite(value):
        return LinePoint(panel.title, name, x, y=None)
    low, high = band_ends(cell, value, spread)
    text = tooltip(name, cell, panel.comparison.header.metric)
    return LinePoint(panel.title, name, x, short_number(value), low, high, text)


def _above_zero(point: LinePoint) -> LinePoint:
    """Let a band that would reach 0, which a logarithmic axis does not have, end as far below as above."""
    if point.y is None or point.low is None or point.high is None or point.low > 0:
        return point
    return replace(point, low=short_number(point.y**2 / point.high))


def _has_curves(panels: Sequence[Panel]) -> bool:
    return any(has_curves(panel.comparison) for panel in panels)


def _rows_as_they_end(points: Sequence[LinePoint]) -> list[str]:
    """Return the rows that have a value, the one that ends highest first."""
    # points go by rising context, so that of each row the last value stays
    last_value = {point.row: point.y for point in points if point.y is not None}
    # The legend then lists names in the order in which the eye meets the lines at their right end.
    return sorted(last_value, key=lambda row: -last_value[row])


def _has_markers(points: Sequence[LinePoint], rows: Sequence[str], panels: Sequence[Panel]) -> bool:
    """Tell whether the lines have so few points that each is marked."""
    return len(points) <= MANY_POINTS * len(rows) * len(panels)


def _domain(points: Sequence[LinePoint], fine: float) -> tuple[float, float]:
    values = [-fine, fine]
    for point in points:
        values += [value for value in (point.y, point.low, point.high) if value is not None]
    return DOMAIN_FACTOR * min(values), DOMAIN_FACTOR * max(values)


def _bands_sentence(panels: Sequence[Panel], rows: Sequence[str]) -> str:
    """Return what the bands are; empty where the data have none."""
    if len(rows) > MOST_BANDS:
        return "Without bands: too many lines."
    cells = [cell for panel in panels for row in panel.comparison.rows for cell in row.cells]
    counts = sorted({cell.seeds for cell in cells if cell.spread is not None})
    # Rows of one seed stand beside rows of several, and their bands are of another kind.
    has_single_seed = any(cell.change_ci95 is not None and cell.spread is None for cell in cells)
    if not counts:
        return "Bands: 95% CI over documents (1 seed)." if has_single_seed else ""
    seeds = plural(counts[0], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    of_single_seed = "; of 1 seed 95% CI over documents" if has_single_seed else ""
    return f"Bands: standard deviation over {seeds}{of_single_seed}."


# --- the axis


def context_axis(columns: Sequence[Column], name: str) -> alt.Axis:
    """Return a tick for each window, with its tokens where all panels agree; of many, powers of two."""
    windows: dict[float, set[int | None]] = defaultdict(set)
    for column in columns:
        # Six digits are what `:g` prints below, and Vega finds the label of a tick by that text.
        windows[float(f"{column.multiple:.6g}")].add(column.window)
    ticks = sorted(windows)
    if len(ticks) > MOST_TICKS:
        ticks = [tick for tick in ticks if is_power_of_two(tick)][-MOST_TICKS:]
    # Panels of several T share an axis in multiples, at which each of them has another number of tokens.
    in_tokens = all(len(tokens) == 1 and None not in tokens for tokens in windows.values())
    labels = {}
    for tick in ticks:
        (window, *_) = windows[tick]
        labels[f"{tick:g}"] = length_heads(tick, window if in_tokens else None)
    unit = "tokens, multiples of T" if in_tokens else "multiples of T"
    return alt.Axis(
        title=f"{name} ({unit})",
        grid=False,
        values=ticks,
        # The expression holds numbers alone. Names of rows never get into one (see base.py).
        labelExpr=f"{json.dumps(labels)}[toString(datum.value)]",
        labelFlush=False,
        labelOverlap=True,
        labelSeparation=4,
    )


def length_heads(multiple: float, window: int | None) -> list[str]:
    """Return the lines of a tick: the tokens where they are known, and the multiple of T."""
    head = f"{multiple:.3g}x"
    if window is None:
        return [head]
    # `16k` for 16384 fits a tick. Below that, and for other windows, the tokens are more exact and as short.
    is_long = window >= 10_000 and window % 1024 == 0
    return [f"{window // 1024}k" if is_long else str(window), head]


# --- the layers


def _line_chart(
    panels: Sequence[Panel],
    rows: Sequence[str],
    points: Sequence[LinePoint],
    levels: Sequence[Level | Margin],
    y: YAxis,
    names: RowNames,
    look: Look,
) -> alt.LayerChart:
    """Return the layers from the back to the front: margins, levels, T, bands, lines, markers."""
    columns = [column for panel in panels for column in panel.comparison.columns]
    multiples = [column.multiple for column in columns]
    # Logarithmic, as windows are doubled: on a linear axis 8T would leave T and 2T no room.
    x = alt.X(
        "x:Q",
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
        axis=context_axis(columns, "position" if _has_curves(panels) else "context"),
    )
    has_markers = _has_markers(points, rows, panels)
    channels = RowChannels(rows, names, look, has_markers)
    # Vega warns on the console about a layer without data.
    layers: list[alt.Chart] = []
    if any(isinstance(level, Margin) for level in levels):
        layers.append(_margins(y, look))
    if any(isinstance(level, Level) for level in levels):
        layers += [_level_rules(y, look), _level_names(y, look)]
    # At the end of the axis a line at T would say nothing that the axis does not.
    if min(multiples) < 1 < max(multiples):
        layers += [_rule_at_t(x, look), _name_of_t(x, look)]
    if len(rows) <= MOST_BANDS:
        layers.append(_bands(x, y, channels))
    # Markers without an area are not seen, but a reader of the page can still point at them.
    layers += [_lines(x, y, channels), _markers(x, y, channels, look.marker_area if has_markers else 0)]
    return alt.LayerChart(layer=layers, data=data_of([*points, *levels]))


def _margins(y: YAxis, look: Look) -> alt.Chart:
    return (
        alt.Chart()
        .transform_filter(alt.expr.isValid(alt.datum.top))
        .mark_rect(color=look.grid, opacity=0.6)
        .encode(y=y.channel("bottom"), y2="top")
    )


def _level_rules(y: YAxis, look: Look) -> alt.Chart:
    return (
        alt.Chart()
        # All points and levels are one data set, since the panels of a figure are split by its field `panel`.
        .transform_filter(alt.expr.isValid(alt.datum.level))
        .mark_rule(color=look.faint, strokeDash=[1, 3])
        .encode(y=y.channel("level"))
    )


def _level_names(y: YAxis, look: Look) -> alt.Chart:
    """Draw the names of the levels right of the panel, where no line goes through them."""
    return (
        alt.Chart()
        .transform_filter(alt.expr.isValid(alt.datum.level))
        .mark_text(color=look.faint, align="left", baseline="middle", dx=3)
        .encode(x=alt.value("width"), y=y.channel("level"), text="name:N")
    )


def _at_t() -> alt.Chart:
    # The line has data of its own, since the data of the chart would give a line for each point.
    return alt.Chart(alt.Data(values=[{"x": 1.0}]))


def _rule_at_t(x: alt.X, look: Look) -> alt.Chart:
    return _at_t().mark_rule(color=look.faint, strokeDash=[2, 3]).encode(x=x)


def _name_of_t(x: alt.X, look: Look) -> alt.Chart:
    """Draw the name of the dashed line above the panel, where no line goes through it."""
    return (
        _at_t()
        .mark_text(text="T", color=look.ink, align="center", baseline="bottom")
        .encode(x=x, y=alt.value(-4))
    )


def _bands(x: alt.X, y: YAxis, channels: RowChannels) -> alt.Chart:
    return (
        alt.Chart()
        .transform_filter(alt.expr.isValid(alt.datum.low))
        .mark_area(clip=True)
        .encode(
            x=x,
            y=y.channel("low"),
            y2="high",
            color=channels.color,
            opacity=channels.opacity(0.16, otherwise=0),
        )
    )


def _lines(x: alt.X, y: YAxis, channels: RowChannels) -> alt.Chart:
    lines = (
        alt.Chart()
        .transform_filter(alt.expr.isValid(alt.datum.row))
        # A missing value is a gap: a line across it would show what nobody measured.
        .mark_line(clip=True, invalid="break-paths-show-domains")
        .encode(
            x=x,
            y=y.channel("y"),
            color=channels.color,
            strokeDash=channels.dash,
            opacity=channels.opacity(1),
        )
    )
    return channels.choosable(lines)


def _markers(x: alt.X, y: YAxis, channels: RowChannels, area: float) -> alt.Chart:
    markers = alt.Chart().transform_filter(alt.expr.isValid(alt.datum.y)).mark_point(clip=True, filled=True)
    return channels.pointable(channels.encode_markers(markers, x, y.channel("y"), area))
