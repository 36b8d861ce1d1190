"""The names of lines: beside their ends where one panel has room for them, else in a legend below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posenc.report.colors import Style
from posenc.report.plots.canvas import SMALLEST, finish, ink, text_width
from posenc.report.plots.lines import STEP, TICKS
from posenc.report.plots.series import Series

WIDEST = 0.36  # of the figure's width, for names beside the lines
GAP = 7.0  # points from the axes to a name


def close(
    figure: Figure,
    axes: Sequence[Axes],
    series: Sequence[Series],
    legend: Sequence[tuple[str, Style]],
    notes: Sequence[str],
) -> Figure:
    """Finish a figure of lines with its names and notes; `series` are those of the first panel."""
    ends = [one for one in series if one.drawn] if len(axes) == 1 else []
    room = figure.get_figheight() - TICKS
    widest = max((text_width(figure, one.name, SMALLEST) for one in ends), default=0.0)
    if ends and len(ends) * STEP <= room and widest <= WIDEST * figure.get_figwidth():
        _name_ends(figure, axes[0], ends, notes)
    else:
        finish(figure, legend, notes)
    return figure


def _name_ends(figure: Figure, axes: Axes, ends: Sequence[Series], notes: Sequence[str]) -> None:
    right = axes.get_xlim()[1]
    texts = []
    for one in ends:
        look: dict[str, Any] = {
            "fontsize": SMALLEST,
            "color": ink(one.style),
            "va": "center",
            "annotation_clip": False,
        }
        place = (right, one.end[1])
        text = axes.annotate(one.name, place, xytext=(GAP, 0), textcoords="offset points", **look)
        text.set_annotation_clip(False)
        texts.append(text)
    finish(figure, [], notes)  # now the axes have their size
    inch, box = figure.dpi, axes.get_window_extent()
    wanted = [float(axes.transData.transform((right, one.end[1]))[1]) for one in ends]
    for text, one, at, y in zip(texts, ends, apart(wanted, STEP * inch, box.y0, box.y1), wanted, strict=True):
        up = (at - y) / inch * 72  # points
        text.set_position((GAP, up))
        place = (right, one.end[1])
        _link(axes, one, one.end, place, "data", 3)
        _link(axes, one, place, (GAP - 1, up), "offset points", 0)


def _link(axes: Axes, one: Series, start: Any, end: Any, coordinates: str, shrink: float) -> None:
    """A thin line from a line's end towards its name."""
    look = {"arrowstyle": "-", "linewidth": 0.5, "color": one.style.color, "shrinkA": 0, "shrinkB": shrink}
    link = axes.annotate(
        "", start, xytext=end, textcoords=coordinates, annotation_clip=False, arrowprops=look
    )
    link.set_in_layout(False)


def apart(wanted: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Places at least `step` apart and within the ends, as near to the wanted ones as their order allows."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[list[float]] = []  # sum of the members' wanted places less their offsets, and their number
    for i, at in enumerate(order):
        blocks.append([wanted[at] - i * step, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    placed: list[float] = []
    for total, count in blocks:
        placed += [total / count] * int(count)
    top = high - (len(order) - 1) * step
    found = [0.0] * len(wanted)
    for i, at in enumerate(order):
        found[at] = min(max(placed[i], low), max(top, low)) + i * step
    return found
