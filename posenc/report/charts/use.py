"""Harm and use: a point for each row, harm to the right and use upward, with its name beside it in a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from posenc.core.quantities import length_text
from posenc.report.cell_texts import verdict_interval
from posenc.report.charts.base import (
    FINE,
    LABEL_EXTENT,
    Chart,
    Panel,
    RowChannels,
    RowNames,
    change_axis,
    change_scale,
    short_number,
    source_sentence,
    tooltip,
)
from posenc.report.charts.looks import Look, data_of
from posenc.report.charts.point_names import (
    FONT_SIZE,
    Box,
    NamedPoint,
    horizontal_rule,
    place_names,
    vertical_rule,
)
from posenc.report.texts import percent_text, unit_text
from posenc.results.beside.recall import RECALL
from posenc.results.comparison import Comparison

HEIGHT = 230  # points, of a panel in a file
MARKER_AREA = 80  # on the page
TICKS = (0, 25, 50, 75, 100)  # per cent
DOMAIN_FACTOR = 1.3  # the width of the axis of changes over that of the changes
HALO = 2.0  # points of background around a name
RULE = "Top left: far text is used and does no harm; bottom left: it is not used; bottom right: it harms."


@dataclass(frozen=True)
class UsePoint:
    """A row's change of the loss (x) and recall (y, per cent) in the longest window, with their intervals."""

    panel: str
    row: str
    x: float
    y: float
    low: float
    high: float
    left: float | None  # None for perplexities of several seeds
    right: float | None
    text: str  # shown while the point is pointed at
    learned: bool


def use_chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    """Return a point for each row at the longest window with both; far changes are logarithmic."""
    points: list[UsePoint] = []
    multiples = set()
    for panel in panels:
        # Harm and use of different windows would be a point that no model has.
        multiple = _longest_shared_window(panel.comparison)
        if multiple is None:
            continue
        points_of_panel = _points_at(panel, names, multiple)
        if points_of_panel:
            points += points_of_panel
            multiples.add(multiple)
    if not points:
        return None
    rows = list(dict.fromkeys(point.row for point in points))
    channels = RowChannels(rows, names, look)
    same = _margin_of_same(panels)
    # The axis bends where `same` ends, as that of the changes by context does.
    fine = FINE if same is None else same
    low, high = _domain(points, fine)
    window = "the longest window" if len(multiples) > 1 else length_text(multiples.pop())
    harm = f"harm: change at {window} against T ({unit_text(panels[0].comparison.header)})"
    x_axis = change_axis(harm, low, high, grid=False, labelOverlap=True)
    y_axis = alt.Axis(title=f"use: recall at {window} (%)", values=list(TICKS), minExtent=LABEL_EXTENT)
    axes = Axes(change_scale(low, high, fine), x_axis, y_axis)
    layers = [
        _rule_at_zero(axes, look),
        _intervals_of_recall(axes, channels),
        _intervals_of_change(axes, channels),
        _markers(axes, channels, MARKER_AREA if look.is_interactive else look.marker_area),
    ]
    sentences = [source_sentence(panels), RULE, "Lines: 95% CI."]
    if same is not None:
        layers.insert(0, _shade_of_same(axes, same, look))
        margins = panels[0].comparison.header.margins
        sentences.append(f"Grey: the loss stays the same, within {margins.same:g} {margins.unit}.")
    sentences.append(f"Changes are logarithmic beyond {fine:.2g}.")
    without_recall = list(dict.fromkeys(point.row for point in points if not point.learned))
    if without_recall:
        sentences.append(f"Did not learn to recall: {', '.join(without_recall)}.")

    def name_points(width: float, height: float) -> alt.LayerChart:
        return _names(points, BentAxis(low, high, fine), Box(0, 0, width, height), channels, look)

    return Chart(
        title="Harm and use",
        layers=alt.LayerChart(
            layer=layers,
            data=data_of(points),
        ),
        panels=list(dict.fromkeys(point.panel for point in points)),
        rows=rows,
        caption=" ".join(sentences),
        height=HEIGHT,
        name_points=name_points,
    )


# --- the data


def _longest_shared_window(comparison: Comparison) -> float | None:
    """Return the longest window, as a multiple of T, that has both losses and recall."""
    # The protocol `recall` asks for values in windows of its own, whose losses are no change.
    table_recall = RECALL.of_table(comparison)
    if table_recall is None or comparison.header.protocol == RECALL.protocol:
        return None
    measured = {column.multiple for column in comparison.columns}
    return max((multiple for multiple in table_recall.multiples if multiple in measured), default=None)


def _points_at(panel: Panel, names: RowNames, multiple: float) -> list[UsePoint]:
    """Return each row's change of the loss and recall in a window, with their intervals."""
    comparison = panel.comparison
    table_recall = RECALL.of_table(comparison)
    assert table_recall is not None
    index = [column.multiple for column in comparison.columns].index(multiple)
    recall_index = table_recall.multiples.index(multiple)
    points = []
    for row in comparison.rows:
        cell = row.cells[index]
        recall = RECALL.of(row)
        farthest = None if recall is None else recall.beyond[recall_index]
        if recall is None or farthest is None or cell.change is None or not math.isfinite(cell.change):
            continue
        name = names.name(row)
        # None means that nobody measured recall within T, so nothing says that the row did not learn.
        learned = recall.learned is not False
        text = f"{tooltip(name, cell, comparison.header.metric)}\nrecall {percent_text(farthest)}"
        low, high = farthest.ci95
        interval = verdict_interval(comparison.header, cell)
        points.append(
            UsePoint(
                panel=panel.title,
                row=name,
                x=short_number(cell.change),
                y=short_number(100 * farthest.accuracy),
                low=short_number(100 * low),
                high=short_number(100 * high),
                left=None if interval is None else short_number(interval[0]),
                right=None if interval is None else short_number(interval[1]),
                text=text if learned else f"{text}, did not learn",
                learned=learned,
            )
        )
    return points


def _margin_of_same(panels: Sequence[Panel]) -> float | None:
    """Return the largest change that is `same`, in the metric; None if the panels have none in common."""
    headers = [panel.comparison.header for panel in panels]
    bits = {header.one_bit for header in headers}
    if len(bits) > 1:
        return None
    (bit,) = bits
    return None if bit is None else bit * headers[0].margins.same


def _domain(points: Sequence[UsePoint], fine: float) -> tuple[float, float]:
    changes = [-fine, fine]
    for point in points:
        changes += [value for value in (point.x, point.left, point.right) if value is not None]
    return DOMAIN_FACTOR * min(changes), DOMAIN_FACTOR * max(changes)


# --- the layers, from the back to the front


@dataclass(frozen=True)
class Axes:
    """The axes of harm and use."""

    x_scale: alt.Scale
    x_axis: alt.Axis
    y_axis: alt.Axis

    def x(self, field: str) -> alt.X:
        """Return the channel that draws a field along the axis of harm."""
        return alt.X(f"{field}:Q", scale=self.x_scale, axis=self.x_axis)

    def y(self, field: str) -> alt.Y:
        """Return the channel that draws a field along the axis of use."""
        return alt.Y(f"{field}:Q", scale=alt.Scale(domain=[0, 100], nice=False), axis=self.y_axis)


def _rule_at_zero(axes: Axes, look: Look) -> alt.Chart:
    zero = alt.Data(values=[{"x": 0}])
    return alt.Chart(zero).mark_rule(color=look.faint, strokeDash=[2, 3]).encode(x=axes.x("x"))


def _shade_of_same(axes: Axes, margin: float, look: Look) -> alt.Chart:
    """Return a band over the changes that are called `same`."""
    ends = alt.Data(values=[{"left": -margin, "right": margin}])
    return alt.Chart(ends).mark_rect(color=look.grid, opacity=0.5).encode(x=axes.x("left"), x2="right")


def _intervals_of_recall(axes: Axes, channels: RowChannels) -> alt.Chart:
    return (
        alt.Chart()
        .mark_rule(clip=True, opacity=0.5)
        .encode(x=axes.x("x"), y=axes.y("low"), y2="high", color=channels.color)
    )


def _intervals_of_change(axes: Axes, channels: RowChannels) -> alt.Chart:
    return (
        alt.Chart()
        .transform_filter(alt.expr.isValid(alt.datum.left))
        .mark_rule(clip=True, opacity=0.5)
        .encode(x=axes.x("left"), x2="right", y=axes.y("y"), color=channels.color)
    )


def _markers(axes: Axes, channels: RowChannels, area: float) -> alt.Chart:
    markers = alt.Chart().mark_point(filled=True)
    encoded = channels.encode_markers(markers, axes.x("x"), axes.y("y"), area)
    return channels.pointable(channels.choosable(encoded))


# --- names beside the points, for a file, which has no tooltip


@dataclass(frozen=True)
class Name:
    """A name where it is drawn, in points from the panel's top left corner."""

    row: str
    left: float
    middle: float


@dataclass(frozen=True)
class BentAxis:
    """The axis of changes: about linear up to `fine` on both sides of 0, and logarithmic beyond."""

    low: float
    high: float
    fine: float

    def share(self, change: float) -> float:
        """Return the place of a change on the axis: 0 at its lower end, 1 at its upper end."""
        start = self._bent(self.low)
        return (self._bent(change) - start) / (self._bent(self.high) - start)

    def _bent(self, change: float) -> float:
        """Return the number that Vega's symlog scale makes of a change."""
        return math.copysign(math.log1p(abs(change) / self.fine), change)


def _names(
    points: Sequence[UsePoint], axis: BentAxis, panel: Box, channels: RowChannels, look: Look
) -> alt.LayerChart:
    """Return the names of the points, each where it covers the least, on a halo of the background."""
    # The places are computed here, since Vega tells nobody where it will draw a point.

    def x_of(change: float) -> float:
        return panel.right * axis.share(change)

    def y_of(percent: float) -> float:
        return panel.bottom * (1 - percent / 100)

    # All that is drawn already counts: rules, ticks and intervals, so that names stand where the paper is
    # empty.
    lines = [vertical_rule(x_of(0), panel.top, panel.bottom)]
    lines += [horizontal_rule(y_of(tick), panel.left, panel.right) for tick in TICKS]
    for point in points:
        lines.append(vertical_rule(x_of(point.x), y_of(point.high), y_of(point.low)))
        if point.left is not None and point.right is not None:
            lines.append(horizontal_rule(y_of(point.y), x_of(point.left), x_of(point.right)))
    named_points = [NamedPoint(point.row, x_of(point.x), y_of(point.y)) for point in points]
    boxes = place_names(named_points, lines, panel)
    names = [
        Name(point.row, box.left, (box.top + box.bottom) / 2)
        for point, box in zip(points, boxes, strict=True)
    ]
    texts = alt.Chart(data_of(names)).encode(
        # In points on the panel and not in data, since the places were sought there.
        x=alt.X("left:Q", scale=None),
        y=alt.Y("middle:Q", scale=None),
        text="row:N",
    )
    # The halo is a text of its own, because the stroke of a text covers part of its letters.
    halo = texts.mark_text(
        align="left", baseline="middle", fontSize=FONT_SIZE, stroke=look.background, strokeWidth=HALO
    )
    letters = texts.mark_text(align="left", baseline="middle", fontSize=FONT_SIZE).encode(
        color=channels.color
    )
    return alt.LayerChart(layer=[halo, letters])
