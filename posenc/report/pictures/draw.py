"""Draw pictures of encodings: panels two to a row, as PNG, SVG or PDF."""

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

from posenc.report.pictures.panels import LOG_RANGE, Arrows, Curves, Map, Panel, Picture
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
LEAST_SHARE = 1e-4  # of a logarithmic map: less than that of the largest is drawn as that

# Okabe, Ito: told apart whatever the colour vision. Their yellow is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 2)))
SEEN = {"hidden": "#DDDDDD", "seen": COLOURS[0]}


def draw(picture: Picture) -> Figure:
    """Make the figure of a picture; of an odd number of panels the first has a row of its own."""
    with styled(WIDTH):
        return _figure(picture)


def picture_bytes(picture: Picture, format: str) -> bytes:
    """Return a file's content, the same bytes for the same picture; `format` is one of panels.FORMATS."""
    with styled(WIDTH):
        return file_bytes(_figure(picture), format)


def _figure(picture: Picture) -> Figure:
    count = len(picture.panels)
    rows = -(-count // COLUMNS)
    head = 0.28 + 0.16 * len(picture.notes)  # inches
    height = ROW * rows + head
    figure = sheet(WIDTH, height)
    title: dict[str, Any] = {"fontsize": 10.5, "fontweight": "bold"}
    for i, text in enumerate([picture.title, *picture.notes]):
        y = 1 - (0.08 + (0.04 + 0.16 * i if i else 0)) / height
        figure.text(0.08 / WIDTH, y, text, ha="left", va="top", **({"color": "0.3"} if i else title))
    grid = figure.add_gridspec(rows, COLUMNS)
    cells = [grid[row, column] for row in range(rows) for column in range(COLUMNS)]
    if count % COLUMNS:
        cells[:COLUMNS] = [grid[0, :]]
    for cell, panel in zip(cells, picture.panels, strict=True):
        _draw_panel(figure, figure.add_subplot(cell), panel)
    lay_out(figure, above=head, pad=0.07)
    return figure


def _draw_panel(figure: Figure, axes: Axes, panel: Panel) -> None:
    axes.set_title(panel.title).set_in_layout(False)  # a long one must not narrow its column
    if isinstance(panel, Arrows):
        _arrows(axes, panel)
        return
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    if isinstance(panel, Curves):
        _curves(figure, axes, panel)
    else:
        _map(figure, axes, panel)


def _curves(figure: Figure, axes: Axes, panel: Curves) -> None:
    count = sum(not line.reference for line in panel.lines)
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, max(count, 1)))
    own = 0
    for line in panel.lines:
        look: dict[str, Any] = {"color": "0.45", "linewidth": 0.9, "zorder": 1.5}
        if not line.reference:
            thinner = 0.9 * own / max(count - 1, 1)  # seen if they coincide
            look = {"color": shades[own] if panel.ordered else COLOURS[own % len(COLOURS)]}
            look |= {"linestyle": DASHES[own % len(DASHES)], "linewidth": 2.2 - thinner if count > 1 else 1.4}
            own += 1
        if panel.points:
            look |= {"linestyle": "none", "marker": "os^Dv"[(own - 1) % 5], "markersize": 4}
        y = np.where(line.y > 0, line.y, np.nan) if panel.y_scale == "log" else line.y
        axes.plot(line.x, y, label=line.label, **look)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.15, linewidth=0)
    _x_scale(axes, panel)
    _y_scale(axes, panel)
    mark_x(axes, panel.marks)
    for name, at in panel.y_marks.items():
        axes.axhline(at, **MARK, linestyle=DASHED)
        axes.text(1.01, at, name, transform=axes.get_yaxis_transform(), va="center", **MARK_NAME)
    if len(panel.lines) > 1 or panel.lines[0].label:
        _legend(figure, axes, list(axes.get_lines()[: len(panel.lines)]))


def _x_scale(axes: Axes, panel: Curves) -> None:
    low, high = min(line.x.min() for line in panel.lines), max(line.x.max() for line in panel.lines)
    if panel.points:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    elif panel.x_scale == "linear":
        axes.set_xlim(low, high)
    else:
        axes.set_xscale(
            panel.x_scale, **({"linthresh": 1, "linscale": 0.35} if panel.x_scale == "symlog" else {})
        )
        axes.set_xlim(low, max([high, *panel.marks.values()]))
        axes.xaxis.set_major_formatter(power)
        axes.xaxis.set_minor_formatter(NullFormatter())


def _y_scale(axes: Axes, panel: Curves) -> None:
    drawn = np.concatenate([line.y for line in panel.lines])
    if panel.y_scale == "log":
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        marked = list(panel.y_marks.values())
        low, high = min([low, *marked]), max([high, *marked])
        room = max(1.0, (10 * low / high) ** 0.5)  # a decade at least: else noise fills the axes
        axes.set_ylim(max(low / room, min([high / LOG_RANGE, *marked])), high * room)
        log_ticks(axes.yaxis)
    elif np.ptp(drawn) < 1e-9:  # a constant: room around it
        axes.set_ylim(drawn[0] - 1, drawn[0] + 1)


def _legend(figure: Figure, axes: Axes, handles: list[Any]) -> None:
    """Put the legend below the axes, so that it never covers what is drawn."""
    short = len(handles) == 4 and all(len(str(one.get_label())) < 10 for one in handles)
    below = axes.transAxes + ScaledTranslation(0, -0.4, figure.dpi_scale_trans)
    look: dict[str, Any] = {"ncols": min(4 if short else 3, len(handles)), "columnspacing": 0.9}
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
    axes.legend(handles=handles, borderaxespad=0.0, **place, **look)


def _map(figure: Figure, axes: Axes, panel: Map) -> None:
    finite = panel.z[np.isfinite(panel.z)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    z = panel.z
    look: dict[str, Any] = {"cmap": "cividis", "vmin": low, "vmax": high}
    if panel.binary:
        look = {"cmap": ListedColormap([*SEEN.values()]), "vmin": 0, "vmax": 1}
    elif panel.log:
        least = max(low, high * LEAST_SHARE)
        z, look = np.maximum(z, least), {"cmap": "cividis", "norm": LogNorm(least, high)}
    elif low < 0 < high:
        most = max(-low, high)
        look = {"cmap": "RdBu_r", "vmin": -most, "vmax": most}
    elif low == high:
        look |= {"vmin": low - 1, "vmax": high + 1}
    look |= {"aspect": "equal", "origin": "upper"} if panel.matrix else {"aspect": "auto", "origin": "lower"}
    mesh = axes.imshow(z, extent=_extent(panel), **look)
    for at in panel.marks.values():
        axes.axvline(at, color="white", linewidth=1.8)
    mark_x(axes, panel.marks, color="black", zorder=3)
    axes.set_xlim(_extent(panel)[:2])  # a mark after the last position does not widen it
    if panel.binary:
        names = [name for value, name in enumerate(SEEN) if (finite == value).any()]
        _legend(figure, axes, [Patch(color=SEEN[name], label=name) for name in reversed(names)])
    else:
        place = axes.inset_axes((1.03, 0.05, 0.045 if panel.matrix else 0.015, 0.9))
        bar = figure.colorbar(mesh, cax=place, format=power)
        bar.set_label(panel.z_label)
        bar.outline.set_linewidth(0.5)


def _extent(panel: Map) -> tuple[float, float, float, float]:
    """Return the edges of the cells: half a step outside the first and the last."""
    (left, right), (bottom, top) = (
        (float(at[0] - half), float(at[-1] + half))
        for at in (panel.x, panel.y)
        for half in [(at[-1] - at[0]) / max(len(at) - 1, 1) / 2 or 0.5]
    )
    return (left, right, top, bottom) if panel.matrix else (left, right, bottom, top)


def _arrows(axes: Axes, panel: Arrows) -> None:
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(panel.tips)))
    most = 1.25 * float(np.abs(panel.tips).max())
    around = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(around), np.sin(around), color="0.85", linewidth=0.8, zorder=0)
    for label, (x, y), colour in zip(panel.labels, panel.tips, shades, strict=True):
        look = {"arrowstyle": "-|>", "color": colour, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (x, y), (0, 0), arrowprops=look)
        axes.annotate(label, (1.12 * x, 1.12 * y), ha="center", va="center", fontsize=7, color=colour)
    axes.set(xlim=(-most, most), ylim=(-most, most), aspect="equal")
    axes.set_xlabel("first number of the pair")
    axes.set_ylabel("second number")
