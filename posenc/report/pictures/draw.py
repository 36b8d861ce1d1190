"""Draw pictures of encodings with matplotlib: panels, two to a row, as PNG, SVG or PDF."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from posenc.report.pictures.panels import Curves, Map, Picture
from posenc.report.plots.canvas import (
    DASHED,
    MARK,
    MARK_NAME,
    file_bytes,
    lay_out,
    log_ticks,
    mark_x,
    power,
    sheet,
    styled,
)

WIDTH = 7.0  # inches
ROW = 2.75  # inches, a row of panels
COLUMNS = 2
LOG_RANGE = 1e7  # of a logarithmic axis: weights below that share of the largest are not shown
LEAST_SHARE = 1e-4  # of a logarithmic map: less than that of the largest is drawn as that

# Okabe, Ito: told apart whatever the colour vision. Their yellow is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 2)))
SEEN = {"hidden": "#DDDDDD", "seen": COLOURS[0]}


def picture_bytes(picture: Picture, format: str) -> bytes:
    """Return a file's content, the same bytes for the same picture; `format` is one of panels.FORMATS."""
    with styled():
        return file_bytes(draw(picture), format)


def draw(picture: Picture) -> Figure:
    """Make the figure of a picture; of an odd number of panels the first has a row of its own."""
    count = len(picture.panels)
    rows = -(-count // COLUMNS)
    head = 0.28 + 0.16 * len(picture.notes)  # inches
    height = ROW * rows + head
    figure = sheet(WIDTH, height)
    left, top = 0.08 / WIDTH, 1 - 0.08 / height
    figure.text(left, top, picture.title, va="top", fontsize=10.5, fontweight="bold")
    for i, text in enumerate(picture.notes):
        figure.text(left, top - (0.2 + 0.16 * i) / height, text, va="top", color="0.3")
    grid = figure.add_gridspec(rows, COLUMNS)
    cells = [grid[row, column] for row in range(rows) for column in range(COLUMNS)]
    if count % COLUMNS:
        cells[:COLUMNS] = [grid[0, :]]
    for cell, panel in zip(cells, picture.panels, strict=True):
        axes = figure.add_subplot(cell)
        axes.set_title(panel.title).set_in_layout(False)  # a long one must not narrow its column
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        if isinstance(panel, Curves):
            _curves(axes, panel)
        else:
            _map(axes, panel)
    lay_out(figure, above=head, pad=0.07)
    return figure


def _curves(axes: Axes, panel: Curves) -> None:
    count = sum(not line.reference for line in panel.lines)
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, max(count, 1)))
    own = 0
    for line in panel.lines:
        look: dict[str, Any] = {"color": "0.45", "linewidth": 0.9, "zorder": 1.5}
        if not line.reference:
            width = 2.2 - 0.9 * own / max(count - 1, 1) if count > 1 else 1.4  # seen if they coincide
            look = {"color": shades[own] if panel.ordered else COLOURS[own % len(COLOURS)]}
            look |= {"linestyle": DASHES[own % len(DASHES)], "linewidth": width}
            own += 1
        if panel.points:
            look |= {"linestyle": "none", "marker": "os^Dv"[(own - 1) % 5], "markersize": 4}
        axes.plot(line.x, line.y, label=line.label, **look)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.15, linewidth=0)
    if panel.points:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        low, high = min(line.x.min() for line in panel.lines), max(line.x.max() for line in panel.lines)
        symlog = {"linthresh": 1, "linscale": 0.35} if panel.x_scale == "symlog" else {}
        axes.set_xscale(panel.x_scale, **symlog)
        axes.set_xlim(low, max([high, *panel.marks.values()]))
    if panel.x_scale == "symlog":
        axes.xaxis.set_major_formatter(power)
        axes.xaxis.set_minor_formatter(NullFormatter())
    _y_scale(axes, panel)
    mark_x(axes, panel.marks)
    for name, at in panel.y_marks.items():
        axes.axhline(at, **MARK, linestyle=DASHED)
        axes.text(1.01, at, name, transform=axes.get_yaxis_transform(), va="center", **MARK_NAME)
    if len(panel.lines) > 1 or panel.lines[0].label:
        _legend(axes, list(axes.get_lines()[: len(panel.lines)]))


def _y_scale(axes: Axes, panel: Curves) -> None:
    drawn = np.concatenate([line.y for line in panel.lines])
    if panel.y_scale == "log":
        axes.set_yscale("log", nonpositive="mask")
        low, high = axes.get_ylim()
        marked = list(panel.y_marks.values())
        high = max([high, *marked])
        low = min([max(low, high / LOG_RANGE), *marked, high / 10])  # a decade at least: else it shows noise
        axes.set_ylim(low, high)
        log_ticks(axes.yaxis)
    elif np.ptp(drawn) < 1e-9:  # a constant: room around it
        axes.set_ylim(drawn[0] - 1, drawn[0] + 1)


def _legend(axes: Axes, handles: list[Any]) -> None:
    """Put the legend below the axes, so that it never covers what is drawn."""
    below = axes.transAxes + ScaledTranslation(0, -0.4, axes.figure.dpi_scale_trans)
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
    short = all(len(str(one.get_label())) < 10 for one in handles)
    axes.legend(handles=handles, ncols=min(4 if short else 3, len(handles)), columnspacing=0.9, **place)


def _map(axes: Axes, panel: Map) -> None:
    low, high = float(np.nanmin(panel.z)), float(np.nanmax(panel.z))
    z = panel.z
    look: dict[str, Any] = {"cmap": "cividis"}
    if panel.binary:
        look = {"cmap": ListedColormap([*SEEN.values()]), "vmin": 0, "vmax": 1}
    elif panel.log:
        least = max(low, high * LEAST_SHARE)
        z, look = np.maximum(z, least), {"cmap": "cividis", "norm": LogNorm(least, high)}
    elif low < 0 < high:
        most = max(-low, high)
        look = {"cmap": "RdBu_r", "vmin": -most, "vmax": most}
    look |= {"aspect": "equal", "origin": "upper"} if panel.matrix else {"aspect": "auto", "origin": "lower"}
    edges = [edge for at in (panel.x, panel.y) for edge in (at[0] - 0.5, at[-1] + 0.5)]
    if panel.matrix:
        edges[2:] = edges[:1:-1]
    mesh = axes.imshow(z, extent=tuple(edges), **look)
    for at in panel.marks.values():
        axes.axvline(at, color="white", linewidth=1.8)
    mark_x(axes, panel.marks, color="black", zorder=3)
    axes.set_xlim(*edges[:2])  # a mark after the last position does not widen it
    if panel.binary:
        _legend(axes, [Patch(color=SEEN[name], label=name) for name in ("seen", "hidden")])
    else:
        place = axes.inset_axes((1.03, 0.05, 0.045 if panel.matrix else 0.015, 0.9))
        bar = axes.figure.colorbar(mesh, cax=place, format=power)
        bar.set_label(panel.z_label)
        bar.outline.set_linewidth(0.5)
