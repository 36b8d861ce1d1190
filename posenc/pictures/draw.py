"""Draw a picture as a figure, by Vega."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import altair as alt
import numpy as np

from posenc.pictures.panels import POSITION, Curves, KeyMask, Numbers, Panel, Picture, VectorMap
from posenc.report.charts.looks import PAPER, AnyChart, configured, data_of, specification
from posenc.report.charts.styles import ON_WHITE
from posenc.report.charts.vega import draw_svg, image_bytes

NOTE_WIDTH = 100  # characters of a line below the title
COLUMNS = 2  # panels in a row
LEGEND_COLUMNS = 3
PANEL_WIDTH = 190  # points, without its axis
PANEL_HEIGHT = 115  # points
POINTS_A_LETTER = 3.7  # of the mean width of a letter below a panel's title
OVERLAP = 0.3  # of a square by the next one, or white hairlines are between them
PANEL_GAP = 66  # points from panel to panel, with the axis
SMALLEST_SHARE = 1e-7  # of the largest weight: a logarithmic axis does not show smaller ones
DASHES = ([1, 0], [6, 2], [6, 2, 1, 2], [1, 1.5], [6, 1, 1, 1, 1, 1], [2, 3], [1, 3])
GREY = "#737373"
VIRIDIS = alt.SchemeParams(name="viridis", extent=[0, 0.85])  # its end is too pale for a line on white
# The same scale as a list, for panels with a grey reference: a scheme of Vega has no place for a grey.
# Vega leaves out the ends of a scheme, so that this list would change the colours of the other panels.
VIRIDIS_COLORS = ("#440154", "#46327E", "#365C8D", "#277F8E", "#1FA187", "#4AC16D", "#A0DA39")
HIDDEN_COLOR = "#00224E"  # of a key that a query does not see
SEEN_COLOR = "#FEE838"
DOT_IN_LEGEND = 40  # square points, the area of a dot
# A line as the symbol of a legend is longer than a marker.
LOOK = replace(
    PAPER,
    legend=alt.LegendConfig(orient="bottom", offset=4, labelOffset=6, symbolSize=200, rowPadding=1),
)


@dataclass(frozen=True)
class LinePoint:
    """A point of a line."""

    line: str
    x: float
    y: float


@dataclass(frozen=True)
class SeenKey:
    """A square of a map: whether the query at y sees the key at x."""

    x: float
    y: float
    seen: float


@dataclass(frozen=True)
class VectorNumber:
    """A square of a map of vectors, from x to x2 and from y to y2."""

    x: float
    x2: float
    y: float
    y2: float
    value: float


@dataclass(frozen=True)
class AxisMark:
    """A named place on an axis."""

    name: str
    place: float


def picture_bytes(picture: Picture, format: str) -> bytes:
    """Return the content of a file in one of figure.PICTURE_FORMATS, the same bytes for the same picture."""
    chart = configured(_picture_chart(picture), LOOK, alt.LegendConfig(columns=LEGEND_COLUMNS))
    return image_bytes(draw_svg(specification(chart)), format)


def _picture_chart(picture: Picture) -> alt.VConcatChart:
    """Return the chart of a picture; if the number of panels is odd, the first one has a row to itself."""
    panels = picture.panels
    rows = []
    if len(panels) % COLUMNS:
        rows.append(_row_chart(panels[:1], COLUMNS * PANEL_WIDTH + PANEL_GAP))
        panels = panels[1:]
    for start in range(0, len(panels), COLUMNS):
        rows.append(_row_chart(panels[start : start + COLUMNS], PANEL_WIDTH))
    lines_of_notes: list[str] = []
    for note in picture.notes:
        lines_of_notes += textwrap.wrap(note, NOTE_WIDTH)
    title = alt.TitleParams(
        text=picture.title,
        subtitle=lines_of_notes,
        anchor="start",
        fontSize=9,
        subtitleFontSize=7.5,
        subtitlePadding=4,
        offset=10,
    )
    chart = alt.vconcat(*(_with_own_scales(row) for row in rows)).properties(title=title)
    return _with_own_scales(chart)


def _with_own_scales(chart: AnyChart) -> AnyChart:
    """Give each panel of a chart its own colours and dashes, and so its own legend."""
    # Vega-Lite shares scales and legends among concatenated charts, and panels have lines of different names.
    return chart.resolve_scale(
        color="independent",
        strokeDash="independent",
        strokeWidth="independent",
        fill="independent",
        stroke="independent",
    )


def _row_chart(panels: Sequence[Panel], width: float) -> alt.HConcatChart:
    """Return panels side by side, each below its title and the sentence that says what to see."""
    sentences = [textwrap.wrap(panel.sentence, int(width / POINTS_A_LETTER)) for panel in panels]
    most_lines = max(map(len, sentences))
    charts = []
    for panel, lines in zip(panels, sentences, strict=True):
        # as many lines in each panel of the row, so that their titles are at one height
        blank_lines = [" "] * (most_lines - len(lines))
        padded = [*lines, *blank_lines]
        charts.append(_panel_chart(panel, padded, width))
    return alt.hconcat(*charts, spacing=24)


def _panel_chart(panel: Panel, sentence: Sequence[str], width: float) -> alt.LayerChart:
    """Return the chart of one panel."""
    if isinstance(panel, VectorMap):
        layers = [_vectors(panel), *_position_marks(panel, width)]
    elif isinstance(panel, KeyMask):
        layers = [_squares(panel)]
    else:
        layers = [*_marks(panel, width), _lines(panel)]
    title = alt.TitleParams(
        text=panel.title,
        subtitle=list(sentence),
        anchor="start",
        frame="group",
        fontSize=8,
        subtitleFontSize=7,
        offset=14,
    )
    return alt.LayerChart(layer=layers).properties(title=title, width=width, height=PANEL_HEIGHT)


def _squares(panel: KeyMask) -> alt.Chart:
    """Return a square for each query and key, bright where the query sees the key."""
    squares = []
    for query, key in zip(*np.nonzero(np.isfinite(panel.seen)), strict=True):
        square = SeenKey(
            x=float(panel.positions[key]),
            y=float(panel.positions[query]),
            seen=float(panel.seen[query, key]),
        )
        squares.append(square)
    axis = alt.Axis(labelOverlap=True, labelAngle=0, ticks=False)
    colors = alt.Scale(domain=[0, 1], range=[HIDDEN_COLOR, SEEN_COLOR])
    return (
        alt.Chart(data_of(squares))
        .mark_rect(strokeWidth=0.6)
        .encode(
            x=alt.X("x:O", title="key position in tokens", axis=axis),
            y=alt.Y("y:O", title="query position (yellow: seen)", axis=axis),
            fill=alt.Fill("seen:N", legend=None, scale=colors),
            stroke=alt.Stroke("seen:N", legend=None, scale=colors),  # fills the hairlines between squares
        )
    )


def _vectors(panel: VectorMap) -> alt.Chart:
    """Return a square for each number of the vectors, blue below zero and orange above."""
    row_edges = _edges(panel.positions)
    column_edges = _edges(panel.dimensions)
    rows_apart = row_edges[1] - row_edges[0]
    columns_apart = column_edges[1] - column_edges[0]
    squares = []
    for row, column in np.ndindex(panel.values.shape):
        square = VectorNumber(
            x=column_edges[column],
            # The last square must not reach past the panel.
            x2=min(column_edges[column + 1] + OVERLAP * columns_apart, column_edges[-1]),
            y=row_edges[row],
            y2=min(row_edges[row + 1] + OVERLAP * rows_apart, row_edges[-1]),
            value=float(panel.values[row, column]),
        )
        squares.append(square)
    # The same limit on both sides, so that zero is white.
    largest = float(np.abs(panel.values).max()) or 1.0
    colors = alt.Scale(scheme="blueorange", domain=[-largest, largest], domainMid=0)
    legend = alt.Legend(
        type="gradient", title=None, gradientLength=PANEL_WIDTH / 2, gradientThickness=6, tickCount=3
    )
    plain = alt.Scale(nice=False, zero=False)
    reversed_scale = alt.Scale(nice=False, zero=False, reverse=True)  # position 0 at the top
    chart = alt.Chart(data_of(squares)).mark_rect()
    return chart.encode(
        x=alt.X("x:Q", title="number of the vector", scale=plain, axis=alt.Axis(grid=False)),
        x2="x2:Q",
        y=alt.Y("y:Q", title=POSITION, scale=reversed_scale, axis=alt.Axis(grid=False, tickCount=5)),
        y2="y2:Q",
        color=alt.Color("value:Q", scale=colors, legend=legend),
    )


def _edges(centres: Numbers) -> list[float]:
    """Return the edges of squares around ascending centres, one more than there are centres."""
    if len(centres) == 1:
        return [float(centres[0]) - 0.5, float(centres[0]) + 0.5]
    # Edges lie halfway between centres, since drawn positions are not quite evenly spaced.
    middles = (centres[1:] + centres[:-1]) / 2
    first = centres[0] - (middles[0] - centres[0])
    last = centres[-1] + (centres[-1] - middles[-1])
    return [float(first), *middles.tolist(), float(last)]


def _position_marks(panel: VectorMap, width: float) -> list[alt.Chart]:
    """Return dashed lines at marked positions, with their names at the right."""
    # A mark past the last position would stretch the axis, and leave the map a part of its panel.
    visible = {name: place for name, place in panel.marks.items() if place <= panel.positions[-1]}
    return _horizontal_marks(visible, width)


def _lines(panel: Curves) -> alt.Chart:
    """Return the lines of a panel; a line that the others are compared with is grey."""
    # A weight of zero has no place on a logarithmic axis, and one of 1e-30 would stretch it until no curve
    # has a shape.
    smallest = -np.inf
    if panel.y_scale == "log":
        smallest = SMALLEST_SHARE * max(line.y.max() for line in panel.lines)
    points = []
    for line in panel.lines:
        for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
            if y > smallest:
                points.append(LinePoint(line.label, x, y))
    chart = alt.Chart(data_of(points))
    marks = chart.mark_point(filled=True, size=14) if panel.has_points else chart.mark_line()
    compared = [line.label for line in panel.lines if not line.is_reference]
    references = [line.label for line in panel.lines if line.is_reference]
    labels = [*compared, *references]
    legend = None
    if len(labels) > 1:
        legend = alt.Legend(symbolSize=DOT_IN_LEGEND) if panel.has_points else alt.Legend()
    return marks.encode(
        x=alt.X("x:Q", title=panel.x_label, axis=_x_axis(panel), scale=_scale(panel.x_scale)),
        y=alt.Y("y:Q", title=_y_title(panel), axis=alt.Axis(tickCount=5), scale=_scale(panel.y_scale)),
        color=alt.Color("line:O", legend=legend, scale=_colors(panel, compared, references)),
        strokeDash=alt.StrokeDash("line:O", legend=legend, scale=_dashes(labels)),
        strokeWidth=alt.StrokeWidth("line:O", legend=legend, scale=_widths(labels)),
    )


def _scale(kind: Literal["linear", "symlog", "log"]) -> alt.Scale:
    return alt.Scale(type=kind, zero=False, nice=False)


def _x_axis(panel: Curves) -> alt.Axis:
    # Vega places the ticks of a symlog scale as on a linear one, so that near distances would have none.
    if panel.x_scale == "linear":
        return alt.Axis()
    end = max(line.x.max() for line in panel.lines)
    powers = [4**power for power in range(20)]  # 1, 4, 16, ...
    return alt.Axis(values=[0, *[tick for tick in powers if tick <= end]])


def _y_title(panel: Curves) -> str | list[str]:
    """Return the title of the y axis; above it the name of the only line, which has no legend."""
    if len(panel.lines) > 1 or not panel.lines[0].label:
        return panel.y_label
    return [panel.lines[0].label, panel.y_label]


def _colors(panel: Curves, compared: Sequence[str], references: Sequence[str]) -> alt.Scale:
    """Return the colours of lines: of a scale if they have an order; grey for references."""
    labels = [*compared, *references]
    greys = [GREY] * len(references)
    if panel.is_ordered and not references:
        return alt.Scale(domain=labels, scheme=VIRIDIS)
    if panel.is_ordered:
        steps = np.linspace(0, len(VIRIDIS_COLORS) - 1, len(compared)).round().astype(int)
        ordered = [VIRIDIS_COLORS[step] for step in steps]
        return alt.Scale(domain=labels, range=[*ordered, *greys])
    colors = [ON_WHITE[number % len(ON_WHITE)] for number in range(len(compared))]
    return alt.Scale(domain=labels, range=[*colors, *greys])


def _dashes(labels: Sequence[str]) -> alt.Scale:
    # Dashes besides colours, since pictures are printed in grey and read by the colour-blind.
    return alt.Scale(domain=labels, range=[DASHES[number % len(DASHES)] for number in range(len(labels))])


def _widths(labels: Sequence[str]) -> alt.Scale:
    """Return widths: each line is thinner than the one below, so that both are seen where they coincide."""
    return alt.Scale(domain=labels, range=[1.2 + 0.2 * number for number in reversed(range(len(labels)))])


def _marks(panel: Curves, width: float) -> list[alt.Chart]:
    """Return dashed lines with their names: above the panel for places on x, at its right for those on y."""
    layers = []
    if panel.marks:
        marks = alt.Chart(data_of([AxisMark(name, place) for name, place in panel.marks.items()]))
        layers.append(_dashed(marks).encode(x="place:Q"))
        layers.append(marks.mark_text(align="center").encode(x="place:Q", y=alt.value(-6), text="name:N"))
    return [*layers, *_horizontal_marks(panel.y_marks, width)]


def _horizontal_marks(places: Mapping[str, float], width: float) -> list[alt.Chart]:
    """Return dashed lines at places on y, with their names at the right of the panel."""
    if not places:
        return []
    marks = alt.Chart(data_of([AxisMark(name, place) for name, place in places.items()]))
    right = alt.value(width + 3)
    names = marks.mark_text(align="left").encode(x=right, y="place:Q", text="name:N")
    return [_dashed(marks).encode(y="place:Q"), names]


def _dashed(marks: alt.Chart) -> alt.Chart:
    return marks.mark_rule(color=GREY, strokeDash=[4, 2], strokeWidth=0.8)
