"""Draw with matplotlib what pictures of encodings and plots of results share: style, legend, axes, files."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from posenc.core.errors import visible
from posenc.report.colors import Style

SMALLEST = 7.0  # points: what a paper's column asks for
PAD = 0.05  # inches, around everything
LINE = 0.135  # inches, a line of a legend or of the notes
CHARACTER = 0.053  # inches, a character of small text
STYLE: dict[str, Any] = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "legend.labelspacing": 0.35,
    "legend.borderaxespad": 0.0,
    "lines.linewidth": 1.3,
    "figure.dpi": 200,
    "savefig.dpi": 200,
    "text.parse_math": False,  # names are other people's text
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "posenc",
    "pdf.fonttype": 42,
}
METADATA: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}

BESIDE = 0.4  # of the width: a legend that is wider stands above the axes
MARK: dict[str, Any] = {"color": "0.45", "linewidth": 0.8, "zorder": 1, "clip_on": False}
MARK_NAME: dict[str, Any] = {"fontsize": SMALLEST, "color": "0.3"}
DASHED = (0, (4, 3))
DOTTED = (0, (1, 2))


@contextmanager
def styled() -> Iterator[None]:
    """Set our style on matplotlib's defaults for a while, whatever the user's own settings are."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as glyphs that the font lacks: drawn as boxes
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        yield


def sheet(width: float, height: float) -> Figure:
    """Make an empty figure; sizes in inches."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def lay_out(figure: Figure, *, above: float = 0.0, below: float = 0.0, pad: float = PAD) -> None:
    """Arrange the axes between `above` and `below` inches kept for text."""
    height = figure.get_figheight()
    rect = (0, below / height, 1, 1 - (above + below) / height)
    figure.set_layout_engine(
        ConstrainedLayoutEngine(w_pad=pad, h_pad=pad, wspace=0.04, hspace=0.03, rect=rect)
    )


def file_bytes(figure: Figure, format: str) -> bytes:
    """Return a file's content, the same bytes for the same figure; `format` is a key of METADATA."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=format, metadata=METADATA[format])
    return buffer.getvalue()


def finish(figure: Figure, legend: Sequence[tuple[str, Style]], notes: Sequence[str]) -> None:
    """Add a legend beside the axes of a single panel, else above; notes below; and lay all of it out."""
    width, height = figure.get_size_inches()
    if legend:
        entry = 0.55 + CHARACTER * max(len(name) for name, _ in legend)  # with its handle
        beside = len(figure.axes) == 1 and entry < BESIDE * width
        columns = 1 if beside else max(1, min(len(legend), int(width / entry)))
        needed = LINE * -(-len(legend) // columns) + 2 * PAD
        height = max(height, needed) if beside else height + needed
        handles = [Line2D([], [], **line_look(style), **marker_look(style)) for _, style in legend]
        place: Any = "outside right upper" if beside else "outside upper center"
        figure.legend(handles, [name for name, _ in legend], loc=place, ncols=columns)
    lines = [line for note in notes for line in textwrap.wrap(visible(note), int(width / CHARACTER))]
    below = LINE * len(lines) + PAD
    height += below
    figure.set_size_inches(width, height)
    for i, line in enumerate(lines):
        y = (below - PAD / 2 - LINE * i) / height
        figure.text(PAD / width, y, line, va="top", **MARK_NAME)
    lay_out(figure, below=below)
    figure.draw_without_rendering()


# Lines and marks


def line_look(style: Style) -> dict[str, Any]:
    """Return matplotlib's words for a line of this style, without its markers."""
    return {"color": style.color, "linestyle": (0, style.dash) if style.dash else "-"}


def marker_look(style: Style) -> dict[str, Any]:
    """Return matplotlib's words for its markers: a white edge keeps them apart where they overlap."""
    size = {"*": 6.0, "X": 4.6, "P": 4.6}.get(style.marker, 4.0)
    return {"marker": style.marker, "markersize": size, "markeredgecolor": "white", "markeredgewidth": 0.4}


def mark_x(axes: Axes, marks: Mapping[str, float], **look: Any) -> None:
    """Draw a dashed line at each place on x, named above the axes; none outside of them."""
    low, high = axes.get_xlim()
    for name, at in marks.items():
        if low <= at <= high:
            axes.axvline(at, **{**MARK, "linestyle": DASHED, **look})
            place = axes.get_xaxis_transform()
            axes.text(at, 1.01, name, transform=place, ha="center", va="bottom", **MARK_NAME)


def mark_y(axes: Axes, name: str, at: float, **look: Any) -> None:
    """Draw a level line, named above its left end."""
    axes.axhline(at, **{**MARK, "color": "0.55", "linewidth": 0.6, **look})
    axes.text(0.01, at, name, transform=axes.get_yaxis_transform(), va="bottom", **MARK_NAME)


# Axes


def number(value: float, _: object = None) -> str:
    """Write a tick's label: the shortest that says the number, with a real minus."""
    return f"{round(value, 9):g}".replace("-", "−")


def power(value: float, _: object = None) -> str:
    """Write 1000, 0.01, or a power of ten in plain characters: mathematics in texts is off."""
    if value == 0 or 1e-3 < abs(value) < 1e5:
        return number(value)
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "10" + f"{math.log10(abs(value)):.0f}".translate(digits)


def log_ticks(axis: Any, label: Any = power) -> None:
    """Name powers of ten, and their 2 and 5 fold where the axis spans less than two decades."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 100 else (1.0,), numticks=9))
    axis.set_major_formatter(FuncFormatter(label))
    axis.set_minor_formatter(NullFormatter())
