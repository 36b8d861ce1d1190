"""Draw with matplotlib what pictures of encodings and plots of results share: style, sizes, axes, files."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
    SymmetricalLogLocator,
)
from matplotlib.transforms import Bbox

from posenc.core.errors import UserError, visible
from posenc.report.colors import Style

SMALLEST = 7.0  # points: what a paper's column asks for
PAD = 0.05  # inches, around everything
NOTE = 0.135  # inches, a line of notes
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
    "legend.handletextpad": 0.5,
    "legend.labelspacing": 0.35,
    "lines.linewidth": 1.3,
    "figure.dpi": 200,
    "savefig.dpi": 200,
    "text.parse_math": False,  # names are other people's text
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "posenc",
    "pdf.fonttype": 42,
}
METADATA: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
COLLAPSED = "constrained_layout not applied"  # how matplotlib's warning begins

NAMES_WIDEST = 0.36  # of the figure's width, for names beside the lines
NAME_STEP = 0.12  # inches from name to name
NAME_GAP = 7.0  # points from the axes to a name
TICKS = 0.75  # inches, of ticks and label below the axes

FINE = 0.62  # of the height of a split axis, for what lies below the split
WORTH = 3.0  # split an axis whose whole range is so many times the fine one
COARSE_BACK = "#F2F2F2"
MARK: dict[str, Any] = {"color": "0.45", "linewidth": 0.8, "zorder": 1, "clip_on": False}
MARK_NAME: dict[str, Any] = {"fontsize": SMALLEST, "color": "0.3"}
DASHED = (0, (4, 3))


@contextmanager
def styled(width: float) -> Iterator[None]:
    """Set our style on matplotlib's defaults, whatever the user's own settings are; put them back afterwards.

    Raises UserError where the axes have no room in `width` inches.
    """
    with matplotlib.rc_context(), warnings.catch_warnings():
        for category in (UserWarning, RuntimeWarning):  # such as glyphs that the font lacks: drawn as boxes
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("error", COLLAPSED, UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        try:
            yield
        except UserWarning as warning:
            problem = "too narrow for what is plotted"
            raise UserError("--plot-width", f"{width:g}", problem, hint="give more inches") from warning


def sheet(width: float, height: float) -> Figure:
    """Make an empty figure; sizes in inches."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def lay_out(figure: Figure, *, above: float = 0.0, below: float = 0.0, pad: float = PAD) -> None:
    """Arrange the axes between `above` and `below` inches kept for text; escape what cannot be printed."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if not text.get_text().isprintable():
            text.set_text("\n".join(visible(line) for line in text.get_text().split("\n")))
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


def text_width(figure: Figure, text: str) -> float:
    """Measure small text: inches."""
    shown = figure.text(0, 0, text, fontsize=SMALLEST)
    found: float = shown.get_window_extent().width / figure.dpi
    shown.remove()
    return found


# Names of lines, and notes below


def finish(figure: Figure, legend: Sequence[tuple[str, Style]], notes: Sequence[str]) -> None:
    """Add a legend and notes below the axes, the figure growing by their height, and lay all of it out."""
    width, body = figure.get_size_inches()
    lines = [line for note in notes for line in _wrapped(figure, note, width - 2 * PAD)]
    key = _legend(figure, legend, width) if legend else None
    key_height = key.get_window_extent().height / figure.dpi + PAD if key is not None else 0.0
    below = key_height + (NOTE * len(lines) + PAD if lines else 0.0)
    height = body + below
    figure.set_size_inches(width, height)
    if key is not None:
        key.set_bbox_to_anchor(Bbox.from_bounds(0.5, below / height, 0, 0), figure.transFigure)
    for i, line in enumerate(lines):
        y = (NOTE * (len(lines) - i) + PAD / 2) / height
        figure.text(PAD / width, y, line, **MARK_NAME, ha="left", va="top")
    lay_out(figure, below=below)
    figure.draw_without_rendering()


@dataclass(frozen=True)
class End:
    """The end of a line, and the name that belongs to it."""

    name: str
    style: Style
    x: float
    y: float


def finish_with_names(figure: Figure, axes: Axes, ends: Sequence[End], notes: Sequence[str]) -> bool:
    """Write names beside the ends of the lines and finish; False, nothing done, where they have no room."""
    room = figure.get_figheight() - TICKS
    widest = max((text_width(figure, one.name) for one in ends), default=0.0)
    if not ends or len(ends) * NAME_STEP > room or widest > NAMES_WIDEST * figure.get_figwidth():
        return False
    right, texts = axes.get_xlim()[1], []
    for one in ends:
        look: dict[str, Any] = {"fontsize": SMALLEST, "color": ink(one.style), "va": "center"}
        look |= {"textcoords": "offset points", "annotation_clip": False}
        texts.append(axes.annotate(one.name, (right, one.y), xytext=(NAME_GAP, 0), **look))
    finish(figure, [], notes)  # now the axes have their size
    inch, box = figure.dpi, axes.get_window_extent()
    wanted = [float(axes.transData.transform((right, one.y))[1]) for one in ends]
    placed = apart(wanted, NAME_STEP * inch, box.y0, box.y1)
    for text, one, at, y in zip(texts, ends, placed, wanted, strict=True):
        up = (at - y) / inch * 72  # points
        text.set_position((NAME_GAP, up))
        _link(axes, one.style, (one.x, one.y), (right, one.y), "data", 3)
        _link(axes, one.style, (right, one.y), (NAME_GAP - 1, up), "offset points", 0)
    return True


def apart(wanted: Sequence[float], step: float, low: float, high: float) -> list[float]:
    """Place names at least `step` apart and within the ends, as near to the wanted places as order allows.

    Pool neighbours that are too near: a block stands at the mean of what its members want.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[list[float]] = []  # of wanted places, each less the offset of its rank
    for rank, at in enumerate(order):
        blocks.append([wanted[at] - rank * step])
        while len(blocks) > 1 and np.mean(blocks[-2]) >= np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    placed = [float(np.mean(block)) for block in blocks for _ in block]
    top = max(high - (len(order) - 1) * step, low)
    found = [0.0] * len(wanted)
    for rank, at in enumerate(order):
        found[at] = min(max(placed[rank], low), top) + rank * step
    return found


def _link(axes: Axes, style: Style, start: Any, end: Any, coordinates: str, shrink: float) -> None:
    look = {"arrowstyle": "-", "linewidth": 0.5, "color": style.color, "shrinkA": 0, "shrinkB": shrink}
    link = axes.annotate(
        "", start, xytext=end, textcoords=coordinates, annotation_clip=False, arrowprops=look
    )
    link.set_in_layout(False)


def _legend(figure: Figure, entries: Sequence[tuple[str, Style]], width: float) -> Any:
    handles = [Line2D([], [], **line_look(style), **marker_look(style)) for _, style in entries]
    widest = max(text_width(figure, name) for name, _ in entries) + 0.45  # handle and gaps
    columns = max(1, min(len(entries), int((width - 2 * PAD) / widest)))
    columns = -(-len(entries) // -(-len(entries) // columns))  # as few as fill the same number of lines
    look: dict[str, Any] = {"columnspacing": 1.0, "borderaxespad": 0.0, "borderpad": 0.0}
    numbers = [str(i) for i in range(len(entries))]
    key = figure.legend(handles, numbers, loc="upper center", ncols=columns, **look)
    for text, (name, _) in zip(key.get_texts(), entries, strict=True):
        text.set_text(name)  # afterwards: matplotlib would leave out names that begin with an underscore
    return key


def _wrapped(figure: Figure, note: str, width: float) -> list[str]:
    """Break a note into lines no wider than `width` inches."""
    columns = max(int(width / 0.047), 20)
    while True:
        lines = textwrap.wrap(note, columns) or [""]
        if columns <= 20 or max(text_width(figure, line) for line in lines) <= width:
            return lines
        columns -= 2


# Lines and marks


def line_look(style: Style) -> dict[str, Any]:
    """Return matplotlib's words for a line of this style, without its markers."""
    return {"color": style.color, "linestyle": (0, style.dash) if style.dash else "-"}


def marker_look(style: Style) -> dict[str, Any]:
    """Return matplotlib's words for its markers: a white edge keeps them apart where they overlap."""
    size = {"*": 6.0, "X": 4.6, "P": 4.6}.get(style.marker, 4.0)
    return {"marker": style.marker, "markersize": size, "markeredgecolor": "white", "markeredgewidth": 0.4}


def ink(style: Style) -> str:
    """Darken its colour for text, which needs more contrast than a line does."""
    red, green, blue = (int(style.color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    share = 0.72 if 0.3 * red + 0.6 * green + 0.1 * blue > 0.45 else 1.0
    return "#" + "".join(f"{round(255 * part * share):02X}" for part in (red, green, blue))


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
    axes.annotate(
        name, (0, at), xycoords=("axes fraction", "data"), xytext=(2, 1.5), textcoords="offset points",
        va="bottom", ha="left", **MARK_NAME,
    )  # fmt: skip


# Axes


def number(value: float, _: object = None) -> str:
    """Write a tick's label: the shortest that says the number, with a real minus."""
    return f"{round(value, 9):g}".replace("-", "−")


def power(value: float, _: object = None) -> str:
    """Write 1000, 0.01, or a power of ten in plain characters: mathematics in texts is off."""
    if value == 0 or 1e-3 < abs(value) < 1e5:
        return f"{value:g}".replace("-", "−")
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "10" + f"{math.log10(abs(value)):.0f}".translate(digits)


def log_ticks(axis: Any, label: Any = power, most: float = 100) -> None:
    """Name powers of ten, and their 2 and 5 fold where the axis spans less than `most`."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < most else (1.0,), numticks=9))
    axis.set_major_formatter(FuncFormatter(label))
    axis.set_minor_formatter(NullFormatter())


def symlog_axis(axes: Axes, linear: float, values: Sequence[float]) -> None:
    """Make y linear within ± `linear` and logarithmic beyond, around the values and 0."""
    axes.set_yscale("symlog", linthresh=linear, linscale=0.6)
    low, high = min([*values, -linear]), max([*values, linear])
    top, bottom = (value * 1.25 if value > linear else linear * 1.4 for value in (high, -low))
    axes.set_ylim(-bottom, top)
    few = max(top, bottom) / linear < 1000
    locator = SymmetricalLogLocator(base=10, linthresh=linear, subs=[1, 2, 5] if few else [1])
    ticks = [t for t in locator.tick_values(-bottom, top) if -bottom <= t <= top]
    ticks = [t for t in ticks if t == 0 or abs(t) >= 0.99 * linear]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: ("+" if v > 0 else "") + number(v)))


@dataclass(frozen=True)
class Split:
    """A vertical scale: linear from `low` to `at` on the lower part, coarser from there to `high`."""

    low: float
    at: float
    high: float

    @property
    def words(self) -> str:
        """Explain it to the reader."""
        times = (self.high - self.at) / (self.at - self.low) * FINE / (1 - FINE)
        return f"Above {number(round(self.at, 2))} (grey) the scale is {times:.0f} times coarser."


def split_of(values: Sequence[float], near: Sequence[float]) -> Split | None:
    """Find the split that leaves all of `near` in the fine part, so that what collapsed does not squash it.

    None where one linear scale serves.
    """
    drawn, kept = [v for v in values if math.isfinite(v)], [v for v in near if math.isfinite(v)]
    if not drawn or not kept or max(kept) <= min(kept):
        return None
    room = 0.08 * (max(kept) - min(kept))
    low, at = min(*kept, *drawn) - room, max(kept) + room
    high = max(drawn) + 0.06 * (max(drawn) - at)
    return Split(low, at, high) if high - at > (WORTH - 1) * (at - low) else None


def split_axis(axes: Axes, split: Split) -> None:
    """Give y this scale; its coarse part has a grey ground."""
    places, shares = (split.low, split.at, split.high), (0.0, FINE, 1.0)
    below = (split.at - split.low) / FINE  # the values continue below the axis, where lines may leave it

    def forward(y: Any) -> Any:
        y = np.asarray(y, float)
        return np.where(y < split.low, (y - split.low) / below, np.interp(y, places, shares))

    def back(v: Any) -> Any:
        v = np.asarray(v, float)
        return np.where(v < 0, split.low + v * below, np.interp(v, shares, places))

    axes.set_yscale("function", functions=(forward, back))
    axes.set_ylim(split.low, split.high)
    fine = [t for t in MaxNLocator(5).tick_values(split.low, split.at) if split.low <= t <= split.at]
    gap = (split.high - split.at) * 0.12  # a tick just above the split would touch the one below it
    coarse = MaxNLocator(4).tick_values(split.at, split.high)
    ticks = fine + [t for t in coarse if split.at + gap <= t <= split.high]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(number))
    axes.axhspan(split.at, split.high, color=COARSE_BACK, zorder=0, linewidth=0)
