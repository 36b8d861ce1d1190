"""Draw pictures of encodings with matplotlib as PNG, SVG or PDF, or write their numbers for a terminal."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from posenc.report.pictures import Curves, Map, Picture

FORMATS = ("png", "svg", "pdf")
WIDTH, ROW, COLUMNS = 7.0, 2.75, 2  # inches, inches of a row of panels, panels
LOG_RANGE = 1e7  # of a logarithmic axis: weights below that share of the largest are not shown
# Okabe, Ito: told apart whatever the colour vision. Their yellow is too pale for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 2)))
MARK: dict[str, Any] = {"color": "0.45", "linewidth": 0.8, "linestyle": (0, (4, 3))}
STYLE: dict[str, Any] = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "text.parse_math": False,  # names are other people's text
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "posenc",
    "pdf.fonttype": 42,
}
METADATA: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
TEXT_WIDTH, NUMBER, NAME = 80, 8, 24  # columns of a terminal, of a number, of a line's name
MOST_NUMBERS = (TEXT_WIDTH - NAME) // NUMBER


def picture_bytes(picture: Picture, format: str) -> bytes:
    """Return a file's content, the same bytes for the same picture; `format` is one of FORMATS."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as glyphs that the font lacks: drawn as boxes
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        buffer = io.BytesIO()
        draw(picture).savefig(buffer, format=format, metadata=METADATA[format])
        return buffer.getvalue()


def draw(picture: Picture) -> Any:
    """Make the figure of a picture; of an odd number of panels the first has a row of its own."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = -(-len(picture.panels) // COLUMNS)
    head = 0.28 + 0.16 * len(picture.notes)  # inches
    height = ROW * rows + head
    figure = Figure(figsize=(WIDTH, height))
    left, top = 0.08 / WIDTH, 1 - 0.08 / height
    figure.text(left, top, picture.title, va="top", fontsize=10.5, fontweight="bold")
    for i, text in enumerate(picture.notes):
        figure.text(left, top - (0.2 + 0.16 * i) / height, text, va="top", color="0.3")
    grid = figure.add_gridspec(rows, COLUMNS)
    cells = [grid[row, column] for row in range(rows) for column in range(COLUMNS)]
    if len(picture.panels) % COLUMNS:
        cells[:COLUMNS] = [grid[0, :]]
    for cell, panel in zip(cells, picture.panels, strict=True):
        axes = figure.add_subplot(cell)
        axes.set_title(panel.title).set_in_layout(False)  # a long one must not narrow its column
        axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
        _curves(axes, panel) if isinstance(panel, Curves) else _map(axes, panel)
    rect = (0, 0, 1, 1 - head / height)
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.07, wspace=0.04, rect=rect))
    return figure


def _curves(axes: Any, panel: Curves) -> None:
    import matplotlib
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
    from matplotlib.transforms import ScaledTranslation

    count, own = sum(not line.reference for line in panel.lines), 0
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, max(count, 1)))
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
    if panel.points:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        axes.set_xscale(
            panel.x_scale, **({"linthresh": 1, "linscale": 0.35} if panel.x_scale == "symlog" else {})
        )
        ends = [end for line in panel.lines for end in (line.x.min(), line.x.max())]
        axes.set_xlim(min(ends), max([*ends, *panel.marks.values()]))
    if panel.x_scale == "symlog":
        axes.xaxis.set_major_formatter(_power)
        axes.xaxis.set_minor_formatter(NullFormatter())
    if panel.y_scale == "log":
        axes.set_yscale("log", nonpositive="mask")
        low, high = axes.get_ylim()
        marked = list(panel.y_marks.values())
        high = max([high, *marked])
        low = min([max(low, high / LOG_RANGE), *marked, high / 10])  # a decade at least: else it shows noise
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 100 else (1.0,), numticks=9)
        )
        axes.yaxis.set_major_formatter(FuncFormatter(_power))
        axes.yaxis.set_minor_formatter(NullFormatter())
    low, high = axes.get_xlim()
    for name, at in panel.marks.items():
        if low <= at <= high:
            axes.axvline(at, zorder=1, **MARK)
            place = axes.get_xaxis_transform()
            axes.text(at, 1.01, name, transform=place, ha="center", va="bottom", fontsize=7, color="0.3")
    for name, at in panel.y_marks.items():
        axes.axhline(at, zorder=1, **MARK)
        axes.text(1.01, at, name, transform=axes.get_yaxis_transform(), va="center", fontsize=7, color="0.3")
    if len(panel.lines) > 1 or panel.lines[0].label:
        lines = list(axes.get_lines()[: len(panel.lines)])
        below = axes.transAxes + ScaledTranslation(0, -0.4, axes.figure.dpi_scale_trans)  # covers no line
        columns = min(len(lines), 4 if all(len(str(one.get_label())) < 10 for one in lines) else 3)
        look = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
        axes.legend(handles=lines, ncols=columns, columnspacing=0.9, handlelength=2.6, **look)


def _map(axes: Any, panel: Map) -> None:
    low, high = panel.at[0] - 0.5, panel.at[-1] + 0.5
    axes.imshow(panel.z, extent=(low, high, high, low), cmap="cividis", vmin=0, vmax=1)
    axes.set_ylabel(f"{panel.y_label} (yellow: seen)")


def _power(value: float, _: object = None) -> str:
    """Write 1000, 0.01, or a power of ten in plain characters: mathematics in texts is off."""
    if value == 0 or 1e-3 < abs(value) < 1e5:
        return f"{round(value, 9):g}".replace("-", "−")
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "10" + f"{math.log10(abs(value)):.0f}".translate(digits)


# --- as text


def picture_text(picture: Picture) -> str:
    """Return title, notes and the numbers of each panel, one below the other, 80 columns wide."""
    parts = [[picture.title, *picture.notes]]
    parts += [[*_numbers(panel)] for panel in picture.panels]
    return "\n\n".join(
        "\n".join(
            textwrap.fill(line, TEXT_WIDTH, subsequent_indent="  ") if len(line) > TEXT_WIDTH else line
            for line in lines
        )
        for lines in parts
    )


def _numbers(panel: Curves | Map) -> Iterator[str]:
    """Yield a row for each line: its values at the ends, at the marks, and at powers of 4 between them."""
    if isinstance(panel, Map):
        yield f"{panel.title}: the last query sees {np.nansum(panel.z[-1]):.0f} of {panel.z.shape[1]} keys"
        return
    every = np.unique(np.concatenate([line.x for line in panel.lines]))
    powers = [4.0**k for k in range(20) if 4.0**k < every[-1]]
    between = np.linspace(every[0], every[-1], MOST_NUMBERS) if panel.x_scale == "linear" else powers
    wanted = [every[0], *between, *panel.marks.values(), every[-1]]
    at = np.unique(every[np.abs(every[:, None] - np.array(wanted)).argmin(0)]).tolist()
    at = at if len(at) <= MOST_NUMBERS else [at[0], *at[1 - MOST_NUMBERS :]]
    names = {value: name for name, value in panel.marks.items()}
    yield f"{panel.title}: {panel.y_label}"
    yield panel.x_label.ljust(NAME) + "".join(f"{names.get(x, f'{x:g}'):>{NUMBER}}" for x in at)
    for line in panel.lines:
        known = {
            x: f"{y + 0.0:,.0f}" if 100 <= abs(y) < 1e6 else f"{y + 0.0:.3g}"
            for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True)
        }
        yield (
            line.label[: NAME - 1].ljust(NAME) + "".join(f"{known.get(x, ''):>{NUMBER}}" for x in at)
        ).rstrip()
    marks = {name: value for name, value in {**panel.marks, **panel.y_marks}.items() if name}
    if marks:
        yield ", ".join(f"{name} = {value:g}" for name, value in marks.items())
