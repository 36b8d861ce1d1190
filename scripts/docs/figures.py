"""A chart as a PNG, with the looks of `posenc compare --plot`."""

from __future__ import annotations

import altair as alt

from posenc.report.charts.looks import PAPER, AnyChart, configured, specification
from posenc.report.charts.vega import draw_svg, image_bytes


def png_of(chart: AnyChart) -> bytes:
    """Return the picture of a chart; fonts and colours are those of posenc's own charts."""
    return image_bytes(draw_svg(specification(configured(chart, PAPER, alt.LegendConfig(columns=1)))), "png")
