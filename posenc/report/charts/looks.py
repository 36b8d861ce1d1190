"""Looks of charts: colours, text sizes and legends, on the page and in a file.

A chart is made for one look. The colours of the page are names of its style sheet (`var(--ink)`), so that a
chart follows the light and the dark page. A file has no style sheet, so its colours are plain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import altair as alt

from posenc.report.charts.styles import Style

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

AnyChart = TypeVar("AnyChart", bound=alt.TopLevelMixin)
# Liberation Sans comes first: it has the widths of Arial, so that a figure looks alike where only one of the
# two is installed.
PAPER_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"


@dataclass(frozen=True)
class Look:
    """How charts look at one place; sizes are in points, those of the page in pixels."""

    ink: str  # colour of names
    faint: str  # colour of axes
    grid: str
    background: str
    font: str
    text_size: float  # of text inside a panel
    label_size: float  # of ticks, rows and panels
    title_size: float  # of axes
    line_width: float
    marker_area: float
    is_interactive: bool  # a reader can point at it, and choose rows in its legend
    axis: alt.AxisConfig  # what differs from Vega's axes beside the fields above
    legend: alt.LegendConfig

    def row_color(self, number: int, style: Style) -> str:
        """Return the colour of the row with this number: on the page it is in the style sheet."""
        return f"var(--s{number})" if self.is_interactive else style.on_white

    def with_font(self, font: str) -> Look:
        """Return the look with another font, and its own fonts where a letter is missing."""
        return replace(self, font=f"{font}, {self.font}")


PAGE = Look(
    ink="var(--ink)",
    faint="var(--faint)",
    grid="var(--line)",
    background="transparent",
    font="system-ui, Liberation Sans, sans-serif",
    text_size=11,
    label_size=12,
    title_size=12,
    line_width=2,
    marker_area=55,
    is_interactive=True,
    axis=alt.AxisConfig(),
    legend=alt.LegendConfig(
        orient="bottom",
        labelLimit=150,
        symbolSize=90,
        symbolStrokeWidth=2,
    ),
)
PAPER = Look(  # a file is as wide as the text of a paper, or as a column of it
    ink="#1A1A1A",
    faint="#555555",
    grid="#DDDDDD",
    background="white",
    font=PAPER_FONT,
    text_size=7,
    label_size=7,
    title_size=7.5,
    line_width=1.2,
    marker_area=26,
    is_interactive=False,
    axis=alt.AxisConfig(domainWidth=0.7, tickWidth=0.7, tickSize=3, gridWidth=0.5),
    legend=alt.LegendConfig(
        orient="top",
        labelLimit=0,
        offset=12,  # the name of the line at T is between legend and panel
        symbolSize=26,
        symbolStrokeWidth=1.2,
        columnPadding=8,
        rowPadding=1,
    ),
)


def configured(chart: AnyChart, look: Look, legend: alt.LegendConfig | None) -> AnyChart:
    """Return a whole chart with the sizes, colours and fonts of a look.

    `legend` is what differs from the legends of the look; None leaves it out.
    """
    # Vega-Lite makes a legend for every channel unless it is told not to.
    if legend is None:
        legend = alt.LegendConfig(disable=True)
    return chart.configure(
        background=look.background,
        font=look.font,
        padding=3,
        view=alt.ViewConfig(stroke=None),
        line=alt.LineConfig(strokeWidth=look.line_width),
        text=alt.MarkConfig(fontSize=look.text_size),
        axis=alt.AxisConfig(
            **_options(look.axis),
            labelColor=look.faint,
            labelFontSize=look.label_size,
            labelPadding=3,
            titleColor=look.faint,
            titleFontSize=look.title_size,
            titleFontWeight="normal",
            titlePadding=6,
            gridColor=look.grid,
            domainColor=look.faint,
            tickColor=look.faint,
        ),
        header=alt.HeaderConfig(
            title=None,
            labelColor=look.ink,
            labelFontSize=look.label_size,
            labelFontWeight="bold",
            labelAnchor="start",
            labelPadding=4,
        ),
        legend=alt.LegendConfig(
            # The chart's own options come second, and so replace those of the look.
            **{**_options(look.legend), **_options(legend)},
            title=None,
            titleFontSize=look.title_size,
            labelColor=look.ink,
            labelFontSize=look.label_size,
            # Vega cuts a legend after 30 entries, unless the limit is 0.
            symbolLimit=0,
            symbolOpacity=1,
        ),
    )


def data_of(points: Iterable[DataclassInstance]) -> alt.Data:
    """Return points as the data of a chart; a value that is None is missing there."""
    # Inline and not by a pandas frame, whose import takes 0.7 s.
    return alt.Data(values=[asdict(point) for point in points])


def specification(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return the Vega-Lite document of a chart, whatever theme a user of altair has switched on."""
    # Altair refuses charts of more than 5,000 points, unless max_rows is None.
    with alt.theme.enable("none"), alt.data_transformers.enable("default", max_rows=None):
        # Validation took 0.3 of 1.2 s for a figure, and what a chart may hold does not depend on the runs.
        # The tests validate every kind.
        document: dict[str, Any] = chart.to_dict(validate=False)
    return document


def _options(config: alt.AxisConfig | alt.LegendConfig) -> dict[str, Any]:
    options: dict[str, Any] = config.to_dict()
    return options
