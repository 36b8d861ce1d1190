"""The charts of comparisons by kind, and their files: PNG, SVG or PDF."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from posenc.core.errors import UserError, visible
from posenc.report.charts.base import Chart, RowNames, panels_of
from posenc.report.charts.looks import PAPER, Look, configured, specification
from posenc.report.charts.names import OWN_CAPTION
from posenc.report.charts.vega import draw_svg, image_bytes
from posenc.report.figure import (
    DEFAULT,
    POINTS_OF_INCH,
    TEXT_WIDTH,
    Figure,
)
from posenc.report.parts import chart_kinds
from posenc.results.comparison import Comparison

NARROWEST_PANEL = 150  # points, with its axis
SMALLEST_PANEL = 40.0  # points, of a panel without its axes
CHARACTER = 3.4  # points, the mean width of a character of 7 points (looks.py), in lower case mostly
LEGEND_SYMBOL = 24  # points, of an entry without its name
PANEL_GAP = 14  # points between panels
TOLERANCE = 1.0  # points, of the size of a figure: Vega rounds the width of its panels
DRAFTS = 5  # a figure is drawn at most so many times to find the size of its panels


def make_chart(kind: str, comparisons: Sequence[Comparison], names: RowNames, look: Look) -> Chart | None:
    """Return the chart of a kind, a panel for each comparison; None without a number."""
    return chart_kinds()[kind].make(panels_of(comparisons), names, look)


# --- files


@dataclass(frozen=True)
class Drawing:
    """A figure that is drawn once, for any number of files."""

    svg: str
    width: float  # points
    caption: str  # what posenc says about it, for the text around the figure

    def data(self, format: str) -> bytes:
        """Return the content of a file in one of posenc.report.figure.PICTURE_FORMATS."""
        return image_bytes(self.svg, format)


def draw_figure(kind: str, comparisons: Sequence[Comparison], figure: Figure = DEFAULT) -> Drawing:
    """Draw the figure of a kind. Raises UserError without a number, or where it does not fit its size."""
    look = PAPER if figure.font is None else PAPER.with_font(figure.font)
    chart = make_chart(kind, comparisons, RowNames(comparisons), look)
    if chart is None:
        raise UserError("--plot-kind", kind, chart_kinds()[kind].problem)
    width = figure.width or TEXT_WIDTH
    columns = max(1, min(len(chart.panels), int(width // NARROWEST_PANEL)))
    if chart_kinds()[kind].needs_full_width:
        columns = 1
    grid = Grid(columns, rows=math.ceil(len(chart.panels) / columns))
    return Drawing(_draw_to_size(chart, figure, look, grid), width, chart.caption)


def _draw_to_size(chart: Chart, figure: Figure, look: Look, grid: Grid) -> str:
    """Return the SVG of a figure whose panels fill its size. Raises UserError for one that is too small."""
    width = figure.width or TEXT_WIDTH
    # Vega fits only a single panel to a size by itself (`autosize` ignores facets), so that the size is found
    # by drawing.
    panel = Size(width / grid.columns, (figure.height or 0.0) / grid.rows)
    # How much axes, legend and caption take is known only once they are drawn.
    for _ in range(DRAFTS):
        svg = draw_svg(specification(_layout(chart, figure, look, panel, grid)))
        drawn_size = _size_of(svg)
        missing_width = width - drawn_size.width
        missing_height = 0.0 if figure.height is None else figure.height - drawn_size.height
        if max(abs(missing_width), abs(missing_height)) <= TOLERANCE:
            break
        # What is missing is shared among the panels of a row, since axes and legend keep their size.
        panel = Size(
            max(SMALLEST_PANEL, panel.width + missing_width / grid.columns),
            max(SMALLEST_PANEL, panel.height + missing_height / grid.rows),
        )
    # Without --size, a figure of long names may be wider than the page.
    is_too_large = min(missing_width, missing_height) < -2 * TOLERANCE
    if figure.width is not None and is_too_large:
        asked_size = Size(figure.width, figure.height or drawn_size.height)
        hint = f"--size {_in_inches(drawn_size)}; fewer --rows and --legend off save room"
        raise UserError("--size", _in_inches(asked_size), "is too small for this figure", hint=hint)
    return svg


# --- layout


@dataclass(frozen=True)
class Grid:
    """How many panels stand beside and below each other."""

    columns: int
    rows: int


@dataclass(frozen=True)
class Size:
    """Width and height in points."""

    width: float
    height: float


def _size_of(svg: str) -> Size:
    width, height = re.findall(r' (?:width|height)="([\d.]+)"', svg)[:2]
    return Size(float(width), float(height))


def _in_inches(size: Size) -> str:
    """Return a size as `--size` takes it, rounded up."""
    return f"{_inches_up(size.width):g}x{_inches_up(size.height):g}"


def _inches_up(points: float) -> float:
    """Return a length in inches, rounded up to a hundredth."""
    # Without the small number, 5.5 inches that come out as 5.5000001 would be rounded up to 5.51.
    return math.ceil(points / POINTS_OF_INCH * 100 - 1e-6) / 100


def _layout(
    chart: Chart, figure: Figure, look: Look, panel: Size, grid: Grid
) -> alt.LayerChart | alt.FacetChart:
    """Lay a chart out for a file: the legend above the panels, and the caption below if it is wanted.

    `panel` is the size of a panel without its axes.
    """
    width = figure.width or TEXT_WIDTH
    height = chart.height if figure.height is None else panel.height
    layers = chart.layers
    has_legend = figure.has_legend
    # Names beside the points make the legend needless. They are placed for the points of one panel.
    if chart.name_points is not None and len(chart.panels) == 1:
        natural_height = height if isinstance(height, float | int) else panel.height
        layers = layers + chart.name_points(panel.width, natural_height)
        has_legend = False
    layers = layers.properties(width=panel.width, height=height)
    longest_name = max((len(row) for row in chart.rows), default=1)
    # Vega does not break the line of a legend by itself: without a number of columns it would leave the
    # figure.
    legend_columns = max(1, int(width / (LEGEND_SYMBOL + CHARACTER * longest_name)))
    whole_figure: alt.LayerChart | alt.FacetChart = layers
    if len(chart.panels) > 1:
        whole_figure = _facets(chart, layers, grid.columns)
    caption = chart.caption if figure.caption == OWN_CAPTION else figure.caption
    if caption is not None:
        whole_figure = whole_figure.properties(title=_caption_below(caption, width, look))
    return configured(whole_figure, look, chart.legend(legend_columns) if has_legend else None)


def _facets(chart: Chart, layers: alt.LayerChart, columns: int) -> alt.FacetChart:
    """Return the panels beside and below each other; each has its own axes."""
    facets = (
        layers.facet(facet=alt.Facet("panel:N", sort=list(chart.panels)), columns=columns)
        .resolve_axis(x="independent", y="independent")
        .properties(spacing=PANEL_GAP)
    )
    return facets.resolve_scale(x="shared", y="independent") if chart.has_own_scales else facets


def _caption_below(caption: str, width: float, look: Look) -> alt.TitleParams:
    """Return a caption as the title below a chart."""
    return alt.TitleParams(
        text=textwrap.wrap(visible(caption), int(width / CHARACTER)),
        orient="bottom",
        anchor="start",
        frame="bounds",
        color=look.faint,
        fontSize=look.text_size,
        fontWeight="normal",
        lineHeight=9.5,
        offset=6,
    )
