"""Pictures from panels, with matplotlib's Figure and no pyplot: numpy in, PNG, SVG or PDF out."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from posenc.report.pictures.axes import draw_panel
from posenc.report.pictures.panels import Picture

WIDTH = 7.0  # inches
ROW = 2.75  # inches, a row of panels
COLUMNS = 2

STYLE = {
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 13,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.7,
    "legend.handletextpad": 0.5,
    "lines.linewidth": 1.4,
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "text.parse_math": False,  # names are other people's text
    "svg.hashsalt": "posenc",
    "pdf.fonttype": 42,
}


@contextmanager
def _style() -> Iterator[None]:
    """Our style on matplotlib's defaults, whatever the user's own settings are; put back afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        yield


def draw(picture: Picture) -> Figure:
    """The figure of a picture, its panels two to a row."""
    with _style():
        return _figure(picture)


def picture_bytes(picture: Picture, format: str) -> bytes:
    """A file's content: the same bytes for the same picture. `format` is one of panels.FORMATS."""
    metadata: dict[str, Any] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[format]
    buffer = io.BytesIO()
    with _style():
        _figure(picture).savefig(buffer, format=format, metadata=metadata)
    return buffer.getvalue()


def _figure(picture: Picture) -> Figure:
    """Two panels to a row; of an odd number the first has a row of its own."""
    count = len(picture.panels)
    rows = -(-count // COLUMNS)
    head = 0.28 + 0.16 * len(picture.notes)  # inches
    height = ROW * rows + head
    # in rows of the figure, not as a title, so that lines may differ in size
    layout = ConstrainedLayoutEngine(
        w_pad=0.07, h_pad=0.07, hspace=0.05, wspace=0.06, rect=(0, 0, 1, 1 - head / height)
    )
    figure = Figure(figsize=(WIDTH, height), layout=layout)
    FigureCanvasAgg(figure)
    for i, text in enumerate([picture.title, *picture.notes]):
        look: dict[str, Any] = {"fontsize": 10.5, "fontweight": "bold"} if i == 0 else {"color": "0.3"}
        y = 1 - (0.08 + (0.2 + 0.16 * (i - 1) if i else 0)) / height
        figure.text(0.08 / WIDTH, y, text, ha="left", va="top", **look)
    grid = figure.add_gridspec(rows, COLUMNS)
    cells = [grid[0, :]] if count % COLUMNS else [grid[0, 0], grid[0, 1]]
    cells += [grid[row, column] for row in range(1, rows) for column in range(COLUMNS)]
    for cell, panel in zip(cells, picture.panels, strict=True):
        draw_panel(figure, figure.add_subplot(cell), panel)
    return figure
