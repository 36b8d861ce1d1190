"""Why rows fail: what attention does by length, a panel for each quantity and a line for each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import altair as alt

from posenc.core.quantities import length_text
from posenc.report.charts.base import (
    LABEL_EXTENT,
    Chart,
    Panel,
    RowChannels,
    RowNames,
    short_number,
    source_sentence,
)
from posenc.report.charts.looks import Look, data_of
from posenc.results.beside.dispersion import DISPERSION, DispersionCell, RowDispersion, variance_ratio

HEIGHT = 110  # points, of a panel in a file
CAPTION = (
    "Attention of the fixed targets' queries, mean over layers, heads and seeds. Variance: of the outputs "
    "of attention over the queries. Far positions: the last T tokens alone, the older half of them placed "
    "as far away as the window reaches, so that no key is added."
)


@dataclass(frozen=True)
class WhyPoint:
    """A quantity of a row in a window."""

    panel: str
    row: str
    x: float  # the window as a multiple of T
    y: float
    text: str  # shown while the point is pointed at


@dataclass(frozen=True)
class Quantity:
    """What a panel shows of each window of a row."""

    title: str
    value: Callable[[RowDispersion, DispersionCell], float | None]


def _variance(row: RowDispersion, cell: DispersionCell) -> float | None:
    return None if row.at_t is None else variance_ratio(row.at_t, cell)


def _far_change(row: RowDispersion, cell: DispersionCell) -> float | None:
    """Return the change by far positions alone, so that its line begins with 0 at T."""
    return 0.0 if cell.multiple == 1 else row.far_change(cell)


QUANTITIES = (
    Quantity("entropy (nats)", lambda row, cell: cell.mean_entropy),
    Quantity("weight on the first token", lambda row, cell: cell.mean_first),
    Quantity("output variance / that at T", _variance),
    Quantity("far positions alone: change (nats)", _far_change),
)


def why_chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    """Return four panels for each comparison: entropy, first token, output variance, far positions."""
    points = [point for panel in panels for point in _points(panel, names, len(panels) > 1)]
    if not points:
        return None
    rows = list(dict.fromkeys(point.row for point in points))
    channels = RowChannels(rows, names, look)
    # Ticks at the windows that were measured. There are few, and a reader asks for them by their multiples.
    multiples = sorted({point.x for point in points})
    x = alt.X(
        "x:Q",
        scale=alt.Scale(type="log", base=2, nice=False, padding=12),
        axis=alt.Axis(
            title="context (multiples of T)",
            grid=False,
            values=multiples,
            labelExpr="datum.value + 'x'",
            labelOverlap=True,
        ),
    )
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(zero=False, nice=False, padding=6),
        axis=alt.Axis(title=None, tickCount=5, minExtent=LABEL_EXTENT),
    )
    return Chart(
        title="Why rows fail",
        layers=alt.LayerChart(
            layer=[_lines(x, y, channels), _markers(x, y, channels, look.marker_area)], data=data_of(points)
        ),
        panels=list(dict.fromkeys(point.panel for point in points)),
        rows=rows,
        caption=f"{source_sentence(panels)} {CAPTION}",
        height=HEIGHT,
        # Nats, shares and ratios have nothing in common that an axis could show.
        has_own_scales=True,
    )


def _points(panel: Panel, names: RowNames, is_named: bool) -> list[WhyPoint]:
    """Return the points of a comparison; `is_named` puts its title before the name of each quantity."""
    points = []
    for quantity in QUANTITIES:
        title = f"{panel.title}: {quantity.title}" if is_named else quantity.title
        for row in panel.comparison.rows:
            dispersion = DISPERSION.of(row)
            if dispersion is None:
                continue
            name = names.name(row)
            for cell in dispersion.cells:
                value = quantity.value(dispersion, cell)
                # A variance of 0 has no ratio. JSON has no infinity.
                if value is None or not math.isfinite(value):
                    continue
                window = f"{length_text(cell.multiple)} = {cell.window} tokens"
                text = f"{name}\n{window}\n{quantity.title}: {value:.3g}"
                points.append(WhyPoint(title, name, short_number(cell.multiple), short_number(value), text))
    return points


def _lines(x: alt.X, y: alt.Y, channels: RowChannels) -> alt.Chart:
    lines = alt.Chart().mark_line(clip=True)
    encoded = lines.encode(
        x=x, y=y, color=channels.color, strokeDash=channels.dash, opacity=channels.opacity(1)
    )
    return channels.choosable(encoded)


def _markers(x: alt.X, y: alt.Y, channels: RowChannels, area: float) -> alt.Chart:
    markers = alt.Chart().mark_point(clip=True, filled=True)
    return channels.pointable(channels.encode_markers(markers, x, y, area))
