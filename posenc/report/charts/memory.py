"""Memory by window: how far next-token distributions move when text farther back than w tokens comes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt

from posenc.core.quantities import length_text
from posenc.report.charts.base import Chart, Panel, RowChannels, RowNames, short_number, source_sentence
from posenc.report.charts.looks import Look, data_of
from posenc.results.beside.memory import MEMORY

HEIGHT = 150  # points, of a panel in a file
CAPTION = (
    "Total variation between the next-token distributions in the longest window and in its last w tokens "
    "alone. 0: no text farther back is seen. It is not use: a model that breaks moves as well."
)


@dataclass(frozen=True)
class MemoryPoint:
    """How far the distributions of a row in its longest window are from those in a shorter one."""

    panel: str
    row: str
    x: float  # the shorter window as a multiple of T
    y: float  # total variation
    text: str  # shown while the point is pointed at


def memory_chart(panels: Sequence[Panel], names: RowNames, look: Look) -> Chart | None:
    """Return a line for each row, from its longest window; None without a number."""
    points = [point for panel in panels for point in _points(panel, names)]
    if not points:
        return None
    rows = list(dict.fromkeys(point.row for point in points))
    channels = RowChannels(rows, names, look)
    multiples = sorted({point.x for point in points})
    x_axis = alt.Axis(title="shorter window w / T", values=multiples, format="~g", grid=False)
    x = alt.X("x:Q", scale=alt.Scale(type="log", base=2, nice=False, padding=12), axis=x_axis)
    # With 0 in sight: it means that no text farther back is seen at all.
    y_scale = alt.Scale(domainMin=0, nice=False, padding=6)
    y = alt.Y("y:Q", scale=y_scale, axis=alt.Axis(title="memory (total variation)", tickCount=5))
    lines = alt.Chart().mark_line(strokeWidth=1.2).encode(x=x, y=y, color=channels.color)
    markers = channels.encode_markers(alt.Chart().mark_point(filled=True), x, y, look.marker_area)
    return Chart(
        title="Memory",
        layers=alt.LayerChart(
            layer=[lines, channels.pointable(channels.choosable(markers))], data=data_of(points)
        ),
        panels=list(dict.fromkeys(point.panel for point in points)),
        rows=rows,
        caption=f"{source_sentence(panels)} {CAPTION}",
        height=HEIGHT,
    )


def _points(panel: Panel, names: RowNames) -> list[MemoryPoint]:
    points = []
    for row in panel.comparison.rows:
        memory = MEMORY.of(row)
        if memory is None:
            continue
        longest = memory.longest
        # Only the longest window has a line: with all of them a row would have as many lines as windows.
        for shorter in longest.shorter:
            windows = f"{length_text(longest.multiple)} against its last {shorter.window} tokens"
            gains = f"right token +{shorter.gained:.3f} -{shorter.lost:.3f}"
            points.append(
                MemoryPoint(
                    panel=panel.title,
                    row=names.name(row),
                    x=short_number(shorter.multiple),
                    y=short_number(shorter.variation),
                    text=f"{names.name(row)}\n{windows}\nmemory {shorter.variation:.3f}, {gains}",
                )
            )
    return points
