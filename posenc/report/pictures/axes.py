"""One panel on its axes: curves, maps and arrows, with matplotlib and numpy."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from posenc.report.pictures.panels import LEAST_SHARE, LOG_RANGE, Arrows, Curves, Map, Panel

# Okabe, Ito: told apart whatever the colour vision. Their yellow is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 2)))
GREY = "0.45"
SEEN = {"hidden": "#DDDDDD", "seen": COLOURS[0]}
MARK: dict[str, Any] = {
    "color": GREY,
    "linestyle": (0, (4, 3)),
    "linewidth": 0.9,
    "zorder": 1,
    "clip_on": False,
}
MARKED: dict[str, Any] = {"fontsize": 7, "color": "0.25"}


def draw_panel(figure: Figure, axes: Axes, panel: Panel) -> None:
    """Draw a panel; its legend goes below."""
    axes.set_title(panel.title).set_in_layout(False)  # a long one must not narrow its column
    if isinstance(panel, Curves):
        _curves(figure, axes, panel)
    elif isinstance(panel, Map):
        _map(figure, axes, panel)
    else:
        _arrows(axes, panel)


def _curves(figure: Figure, axes: Axes, panel: Curves) -> None:
    count = sum(not line.reference for line in panel.lines)
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, max(count, 1)))
    own = 0
    for line in panel.lines:
        if line.reference:
            look: dict[str, Any] = {"color": GREY, "linestyle": "-", "linewidth": 0.9, "zorder": 1.5}
        else:
            colour = shades[own] if panel.ordered else COLOURS[own % len(COLOURS)]
            look = {"color": colour, "linestyle": DASHES[own % len(DASHES)]}
            look["linewidth"] = (
                2.3 - 0.9 * own / max(count - 1, 1) if count > 1 else 1.4
            )  # seen if they coincide
            own += 1
        if panel.points:
            look = {
                "color": look["color"],
                "linestyle": "none",
                "marker": "os^Dv"[(own - 1) % 5],
                "markersize": 4,
            }
        y = np.where(line.y > 0, line.y, np.nan) if panel.y_scale == "log" else line.y
        axes.plot(line.x, y, label=line.label, **look)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.15, linewidth=0)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    _scales(axes, panel)
    _marks(axes, panel.marks)
    for name, at in panel.y_marks.items():
        axes.axhline(at, **MARK)
        axes.text(1.01, at, name, transform=axes.get_yaxis_transform(), ha="left", va="center", **MARKED)
    if len(panel.lines) > 1 or panel.lines[0].label:
        _legend(figure, axes, list(axes.get_lines()[: len(panel.lines)]))


def _scales(axes: Axes, panel: Curves) -> None:
    if panel.x_scale == "symlog":
        axes.set_xscale("symlog", linthresh=1, linscale=0.35)
    elif panel.x_scale == "log":
        axes.set_xscale("log")
    if panel.y_scale == "log":
        axes.set_yscale("log")
    low, high = min(line.x.min() for line in panel.lines), max(line.x.max() for line in panel.lines)
    if panel.x_scale != "linear":
        axes.set_xlim(low, max(high, *panel.marks.values()) if panel.marks else high)
        axes.xaxis.set_major_formatter(_power)
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif panel.points:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.set_xlim(low, high)
    drawn = np.concatenate([line.y for line in panel.lines])
    least, most = np.nanmin(drawn), np.nanmax(drawn)
    if panel.y_scale == "linear" and most - least < 1e-9:  # a constant: room around it
        axes.set_ylim(least - 1, most + 1)
    elif panel.y_scale == "log":
        low, high = axes.get_ylim()
        marked = list(panel.y_marks.values())
        low, high = min([low, *marked]), max([high, *marked])
        room = max(1.0, (10 * low / high) ** 0.5)  # a decade at least: else noise fills the axes
        axes.set_ylim(max(low / room, min([high / LOG_RANGE, *marked])), high * room)
        _log_ticks(axes.yaxis)


def _log_ticks(axis: Any) -> None:
    """Powers of ten named in plain characters; within two of them also their 2 and 5 fold."""
    low, high = axis.get_view_interval()
    if high / low < 100:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(_power)
    axis.set_minor_formatter(NullFormatter())


def _power(value: float, _: object = None) -> str:
    """1000, 0.01, or a power of ten in plain characters: mathematics in texts is off."""
    if value == 0 or 1e-3 < abs(value) < 1e5:
        return f"{value:g}".replace("-", "−")
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "10" + f"{np.log10(abs(value)):.0f}".translate(digits)


def _marks(axes: Axes, marks: dict[str, float], over_picture: bool = False) -> None:
    for name, at in marks.items():
        if over_picture:
            axes.axvline(at, color="white", linewidth=1.8)
        axes.axvline(at, **{**MARK, **({"color": "black", "zorder": 3} if over_picture else {})})
        axes.text(at, 1.01, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom", **MARKED)


def _legend(figure: Figure, axes: Axes, handles: list[Any]) -> None:
    """Below the axes, so that it never covers what is drawn."""
    columns = 4 if len(handles) == 4 and all(len(str(h.get_label())) < 10 for h in handles) else 3
    axes.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=axes.transAxes + ScaledTranslation(0, -0.4, figure.dpi_scale_trans),
        ncols=min(columns, len(handles)),
        columnspacing=0.9,
        borderaxespad=0.0,
    )


def _map(figure: Figure, axes: Axes, panel: Map) -> None:
    finite = panel.z[np.isfinite(panel.z)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    look: dict[str, Any] = {"cmap": "cividis", "vmin": low, "vmax": high}
    z = panel.z
    if panel.binary:
        look = {"cmap": ListedColormap([*SEEN.values()]), "vmin": 0, "vmax": 1}
    elif panel.log:
        least = max(low, high * LEAST_SHARE)
        look = {"cmap": "cividis", "norm": LogNorm(least, high)}
        z = np.maximum(z, least)
    elif low < 0 < high:
        most = max(-low, high)
        look = {"cmap": "RdBu_r", "vmin": -most, "vmax": most}
    elif low == high:
        look["vmin"], look["vmax"] = low - 1, high + 1
    mesh = axes.imshow(
        z,
        aspect="equal" if panel.matrix else "auto",
        origin="upper" if panel.matrix else "lower",
        extent=_extent(panel),
        **look,
    )
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_xlim(_extent(panel)[:2])
    _marks(axes, panel.marks, over_picture=True)
    if panel.binary:
        names = [name for value, name in enumerate(("hidden", "seen")) if (finite == value).any()]
        patches = [Patch(color=SEEN[name], label=name) for name in reversed(names)]
        _legend(figure, axes, patches)
    else:
        place = axes.inset_axes((1.03, 0.05, 0.045 if panel.matrix else 0.015, 0.9))
        bar = figure.colorbar(mesh, cax=place, format=_power)
        bar.set_label(panel.z_label, fontsize=7.5)
        bar.outline.set_linewidth(0.5)


def _extent(panel: Map) -> tuple[float, float, float, float]:
    """Edges of the cells: half a step outside the first and the last."""
    edges = []
    for at in (panel.x, panel.y):
        half = (at[-1] - at[0]) / max(len(at) - 1, 1) / 2 or 0.5
        edges.append((float(at[0] - half), float(at[-1] + half)))
    (left, right), (bottom, top) = edges
    return (left, right, top, bottom) if panel.matrix else (left, right, bottom, top)


def _arrows(axes: Axes, panel: Arrows) -> None:
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, len(panel.tips)))
    most = 1.25 * float(np.abs(panel.tips).max())
    around = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(around), np.sin(around), color="0.85", linewidth=0.8, zorder=0)
    for label, (x, y), colour in zip(panel.labels, panel.tips, shades, strict=True):
        axes.annotate(
            "",
            (x, y),
            (0, 0),
            arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.2, "shrinkA": 0, "shrinkB": 0},
        )
        axes.annotate(label, (1.12 * x, 1.12 * y), ha="center", va="center", fontsize=7, color=colour)
    axes.set_xlim(-most, most)
    axes.set_ylim(-most, most)
    axes.set_aspect("equal")
    axes.set_xlabel("first number of the pair")
    axes.set_ylabel("second number")
