"""Plot results: a figure of one kind, drawn with matplotlib from runs and their comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.errors import UserError
from posenc.core.paths import output_file
from posenc.results.comparison import Comparison
from posenc.results.load import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLOTS = {
    "context": "loss against context",
    "change": "change against the loss at T, against context",
    "positions": "loss by position in one long context",
    "heatmap": "change against T by encoding and context",
    "training": "training loss against tokens",
    "probes": "induction and far-copy against context",
}
KIND = "context"  # where none is asked for
FORMATS = ("png", "svg", "pdf")
WIDTH = 5.5  # inches; 3.3 is a column of a paper
NARROWEST, WIDEST = 1.0, 40.0  # inches


def figure_of(
    kind: str, runs: Sequence[Run], comparisons: Sequence[Comparison], width: float = WIDTH
) -> Figure:
    """Make the figure of a kind (a key of PLOTS), `width` inches wide: a panel for each comparison.

    `runs` are what the comparisons were made of. Raises UserError where nobody has measured what it shows.
    """
    from posenc.report.plots.canvas import styled
    from posenc.report.plots.curves import change, context, positions, probes, training
    from posenc.report.plots.heatmap import heatmap

    _check_kind(kind)
    draw = {"context": context, "change": change, "positions": positions, "heatmap": heatmap}
    draw |= {"training": training, "probes": probes}
    with styled():
        return draw[kind](runs, comparisons, width)


def plot_bytes(
    format: str, kind: str, runs: Sequence[Run], comparisons: Sequence[Comparison], width: float = WIDTH
) -> bytes:
    """Return a file's content, the same bytes for the same runs; `format` is one of FORMATS."""
    from posenc.report.plots.canvas import file_bytes, styled

    with styled():
        return file_bytes(figure_of(kind, runs, comparisons, width), format)


def save_plot(
    path: Path, kind: str, runs: Sequence[Run], comparisons: Sequence[Comparison], width: float = WIDTH
) -> None:
    """Write a figure as its suffix says, whole or not at all. Raises UserError; RunError for a full disk."""
    place = check_plot(path, kind, width)
    write_bytes_atomic(place, plot_bytes(path.suffix[1:].lower(), kind, runs, comparisons, width))


def check_plot(path: Path, kind: str, width: float = WIDTH) -> Path:
    """Return where the figure will be. Raises UserError for a wrong suffix, folder, kind or width."""
    if path.suffix[1:].lower() not in FORMATS:
        allowed = ", ".join(f".{name}" for name in FORMATS)
        raise UserError("--plot", path, "its ending names the format", allowed=allowed)
    place = output_file("--plot", path)
    _check_kind(kind)
    if not NARROWEST <= width <= WIDEST:  # nan, too
        allowed = f"inches from {NARROWEST:g} to {WIDEST:g}"
        raise UserError("--plot-width", width, "not a width", allowed=allowed)
    return place


def _check_kind(kind: str) -> None:
    if kind not in PLOTS:
        raise UserError("--plot-kind", kind, "no such plot", allowed=list(PLOTS))
