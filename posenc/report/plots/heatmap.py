"""Plot the change against the loss at T by row and context: colours and numbers, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from posenc.report.captions import unit_of
from posenc.report.plots.canvas import CHARACTER, SMALLEST, finish, number, sheet
from posenc.report.plots.curves import LINEAR, tokens
from posenc.report.plots.series import Names, missing, panel_titles, source
from posenc.results.cells import Cell, short_note
from posenc.results.comparison import Column, Comparison, Row
from posenc.results.load import Run
from posenc.results.schema import printed, printed_change

COLOURS = "RdBu_r"  # red: worse than at T; both ends as dark, so that it is a distance in grey, too
DARKEST = 0.86  # of the colours: their ends are too dark for black numbers
ROW, HEAD, FOOT, TITLE, CELL = 0.19, 0.38, 0.06, 0.2, 0.5  # inches
NONE, MISSING = "white", "#EDEDED"  # without a change, without a number


def heatmap(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """Make the figure, wider than `width` where numbers need it; the column of T shows the loss itself."""
    names, titles = Names(comparisons), panel_titles(comparisons)
    heights = [
        HEAD + FOOT + ROW * len(one.rows) + (TITLE if title else 0.0)
        for one, title in zip(comparisons, titles, strict=True)
    ]
    longest = max((len(names.of(row)) for one in comparisons for row in one.rows), default=0)
    columns = max((len(one.columns) for one in comparisons), default=0)
    figure = sheet(max(width, CHARACTER * longest + 0.2 + CELL * columns), sum(heights))
    cells = [cell for one in comparisons for row in one.rows for cell in row.cells]
    changes = [abs(cell.change) for cell in cells if cell.change is not None and math.isfinite(cell.change)]
    most = max([*changes, 2 * LINEAR]) / DARKEST  # as many decades to worse as to better: 0 is white
    norm = SymLogNorm(LINEAR, vmin=-most, vmax=most, base=10)
    grid = figure.subplots(len(comparisons), 1, squeeze=False, height_ratios=heights)
    for comparison, axes, title in zip(comparisons, grid[:, 0], titles, strict=True):
        _draw(axes, comparison, names, norm)
        axes.set_title(title, pad=4).set_in_layout(bool(title))
    unit = unit_of(comparisons[0].header)
    words = f"Change against the loss at T in {unit}: red is worse, blue is better; at T the loss itself."
    finish(figure, [], [f"{source(comparisons)} {words}", *missing(comparisons, names)])
    return figure


def _draw(axes: Axes, comparison: Comparison, names: Names, norm: Normalize) -> None:
    """Draw the cells, each with its number or why there is none."""
    colours, rows, columns = matplotlib.colormaps[COLOURS], comparison.rows, comparison.columns
    at: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALLEST}
    for i, row in enumerate(rows):
        for j, (cell, column) in enumerate(zip(row.cells, columns, strict=True)):
            own, ink = row.extend is None and column.multiple == 1, "0.1"
            fill: Any = NONE
            if cell.mean is None:
                fill, ink = MISSING, "0.35"
            elif not own and cell.change is not None:
                red, green, blue, _ = fill = colours(float(norm(cell.change)))
                ink = "white" if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else "0.1"
            axes.add_patch(Rectangle((j, i), 1, 1, facecolor=fill, edgecolor="white", linewidth=1.0))
            shown = _text(row, cell, own, comparison.header["metric"])
            axes.text(j + 0.5, i + 0.52, shown, color=ink, fontweight="bold" if own else "normal", **at)
    axes.set(xlim=(0, max(len(columns), 1)), ylim=(max(len(rows), 1), 0))
    axes.set_xticks([j + 0.5 for j in range(len(columns))], [_head(column) for column in columns])
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [names.of(row) for row in rows])
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)


def _text(row: Row, cell: Cell, own: bool, metric: str) -> str:
    """Return the change, the loss in brackets where there is no change, or why there is neither."""
    if cell.mean is None:
        return short_note(cell.note or "")[:8]  # the notes below have all of it
    if own:
        return printed(cell.mean, metric)
    if cell.change is None:
        return f"({printed(cell.mean, metric)})"
    return printed_change(cell.change, metric).replace("-", "−")


def _head(column: Column) -> str:
    name = f"{number(column.multiple)}x" + (" = T" if column.multiple == 1 else "")
    return name if column.window is None else f"{tokens(column.window)}\n{name}"
