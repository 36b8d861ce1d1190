"""The sheet that plots are drawn on: style, size in inches, notes below, the bytes of a file."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from posenc.core.errors import UserError
from posenc.report.colors import Style
from posenc.report.pictures.draw import STYLE as PICTURES

SMALLEST = 7.0  # points: what a paper's column asks for
PAD = 0.05  # inches, around everything
LINE = 0.135  # inches, a line of notes
STYLE: dict[str, Any] = {
    **PICTURES,
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titlepad": 12,
    "axes.labelsize": 7.5,
    "legend.handlelength": 2.6,
    "legend.labelspacing": 0.35,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "figure.dpi": 200,
    "savefig.dpi": 200,
    "svg.fonttype": "none",  # text stays text
}
COLLAPSED = "constrained_layout not applied"  # how matplotlib's warning begins
METADATA: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


@contextmanager
def styled(width: float) -> Iterator[None]:
    """Our style on matplotlib's defaults, whatever the user's own settings are; put back afterwards.

    matplotlib's warnings are not shown. Raises UserError where the axes have no room in `width` inches.
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
            raise _too_narrow(width) from warning


def _too_narrow(width: float) -> UserError:
    return UserError("--plot-width", f"{width:g}", "too narrow for what is plotted", hint="give more inches")


def sheet(width: float, height: float) -> Figure:
    """An empty figure; sizes in inches."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def file_bytes(figure: Figure, format: str) -> bytes:
    """A file's content: the same bytes for the same figure. `format` is one of METADATA."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=format, metadata=METADATA[format])
    return buffer.getvalue()


def finish(figure: Figure, legend: Sequence[tuple[str, Style]], notes: Sequence[str]) -> None:
    """Add a legend and notes below the axes, the figure growing by their height, and lay all of it out."""
    width, body = figure.get_size_inches()
    lines = [line for note in notes for line in _wrapped(figure, note, width - 2 * PAD)]
    key = _legend(figure, legend, width) if legend else None
    key_height = key.get_window_extent().height / figure.dpi + PAD if key is not None else 0.0
    below = key_height + (LINE * len(lines) + PAD if lines else 0.0)
    height = body + below
    figure.set_size_inches(width, height)
    figure.set_layout_engine(
        ConstrainedLayoutEngine(
            w_pad=PAD, h_pad=PAD, wspace=0.02, hspace=0.02, rect=(0, below / height, 1, 1 - below / height)
        )
    )
    if key is not None:
        key.set_bbox_to_anchor(Bbox.from_bounds(0.5, below / height, 0, 0), figure.transFigure)
    for i, line in enumerate(lines):
        y = (LINE * (len(lines) - i) + PAD / 2) / height
        figure.text(PAD / width, y, line, fontsize=SMALLEST, color="0.3", ha="left", va="top")
    figure.draw_without_rendering()


def text_width(figure: Figure, text: str, size: float) -> float:
    """Inches."""
    shown = figure.text(0, 0, text, fontsize=size)
    found: float = shown.get_window_extent().width / figure.dpi
    shown.remove()
    return found


def line_look(style: Style) -> dict[str, Any]:
    """matplotlib's words for a line of this style, without its markers."""
    return {"color": style.color, "linestyle": (0, style.dash) if style.dash else "-"}


def marker_look(style: Style) -> dict[str, Any]:
    """matplotlib's words for its markers: a white edge keeps them apart where they lie on each other."""
    larger = {"*": 6.0, "X": 4.6, "P": 4.6}.get(style.marker, 4.0)
    return {"marker": style.marker, "markersize": larger, "markeredgecolor": "white", "markeredgewidth": 0.4}


def ink(style: Style) -> str:
    """Its colour for text, which needs more contrast than a line does."""
    red, green, blue = (int(style.color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    share = 0.72 if 0.3 * red + 0.6 * green + 0.1 * blue > 0.45 else 1.0
    return "#" + "".join(f"{round(255 * part * share):02X}" for part in (red, green, blue))


def _legend(figure: Figure, entries: Sequence[tuple[str, Style]], width: float) -> Any:
    handles = [Line2D([], [], **line_look(style), **marker_look(style)) for _, style in entries]
    widest = max(text_width(figure, name, SMALLEST) for name, _ in entries) + 0.45  # handle and gaps
    columns = max(1, min(len(entries), int((width - 2 * PAD) / widest)))
    columns = -(-len(entries) // -(-len(entries) // columns))  # as few as fill the same number of lines
    key = figure.legend(
        handles, [str(i) for i in range(len(entries))], loc="upper center", ncols=columns,
        columnspacing=1.0, borderaxespad=0.0, borderpad=0.0, fontsize=SMALLEST,
    )  # fmt: skip
    for text, (name, _) in zip(key.get_texts(), entries, strict=True):
        text.set_text(name)  # afterwards: matplotlib would leave out names that begin with an underscore
    return key


def _wrapped(figure: Figure, note: str, width: float) -> list[str]:
    """Lines that are no wider than `width` inches."""
    columns = int(width / 0.047)
    while True:
        lines = textwrap.wrap(note, max(columns, 20)) or [""]
        widest = max(text_width(figure, line, SMALLEST) for line in lines)
        if widest <= width or columns <= 20:
            return lines
        columns = min(columns - 1, int(columns * width / widest) + 1)
