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

from posenc.report.plots.canvas import CHARACTER, SMALLEST, finish, number, sheet
from posenc.report.plots.curves import LINEAR, tokens
from posenc.report.plots.series import Names, missing, panel_titles, per_bit, seeds_of, short_unit, source
from posenc.results.cells import Cell, short_note
from posenc.results.comparison import Column, Comparison, Row
from posenc.results.load import Run
from posenc.results.schema import printed, printed_change

COLOURS = "RdBu_r"  # red: worse than at T; both ends as dark, so that it is a distance in grey, too
DARKEST = 0.86  # of the colours: their ends are too dark for black numbers
LONGEST_REASON = 8  # characters
ROW, HEAD, FOOT, TITLE, CELL = 0.19, 0.38, 0.06, 0.2, 0.5  # inches
EMPTY: dict[str, Any] = {"facecolor": "white", "edgecolor": "white", "linewidth": 1.0}
MISSING: dict[str, Any] = {"facecolor": "#EDEDED", "edgecolor": "white", "linewidth": 1.0}


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
    norm = _norm(runs, comparisons)
    grid = figure.subplots(len(comparisons), 1, squeeze=False, height_ratios=heights)
    for comparison, axes, title in zip(comparisons, grid[:, 0], titles, strict=True):
        _draw(axes, comparison, names, norm)
        axes.set_title(title, pad=4).set_in_layout(bool(title))
    finish(figure, [], [_words(comparisons), *names.policies, *missing(comparisons, names)])
    return figure


def _words(comparisons: Sequence[Comparison]) -> str:
    unit, more = short_unit(comparisons[0])
    parts = [source(comparisons), f"Change against the loss at T in {unit}: red is worse, blue is better."]
    parts += ["Uncoloured: the loss at T itself.", more]
    rows = [row for one in comparisons for row in one.rows]
    if any(row.extend is not None for row in rows):
        parts.append("Extensions: against the same run without one.")
    if seeds := {cell.seeds for row in rows for cell in row.cells if cell.seeds}:
        parts.append(f"Means over {seeds_of(seeds)}.")
    return " ".join(filter(None, parts))


def _draw(axes: Axes, comparison: Comparison, names: Names, norm: Normalize) -> None:
    """Draw the cells, each with its number or why there is none."""
    colours, rows, columns = matplotlib.colormaps[COLOURS], comparison.rows, comparison.columns
    for i, row in enumerate(rows):
        for j, (cell, column) in enumerate(zip(row.cells, columns, strict=True)):
            ink, look = "0.1", EMPTY
            if cell.mean is None:
                look, ink = MISSING, "0.35"
            elif not _own(row, column) and cell.change is not None:
                red, green, blue, _ = colour = colours(float(norm(cell.change)))
                look = {**EMPTY, "facecolor": colour}
                ink = "white" if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else "0.1"
            axes.add_patch(Rectangle((j, i), 1, 1, **look))
            shown = _text(column, row, cell, comparison.header["metric"])
            weight = "bold" if _own(row, column) and cell.mean is not None else "normal"
            at = {"ha": "center", "va": "center", "fontsize": SMALLEST}
            axes.text(j + 0.5, i + 0.52, shown, color=ink, fontweight=weight, **at)  # type: ignore[arg-type]
    axes.set(xlim=(0, max(len(columns), 1)), ylim=(max(len(rows), 1), 0))
    axes.set_xticks([j + 0.5 for j in range(len(columns))], [_head(column) for column in columns])
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [names.of(row) for row in rows])
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)


def _own(row: Row, column: Column) -> bool:
    """Tell whether this is what the changes of the row are against."""
    return row.extend is None and column.multiple == 1


def _text(column: Column, row: Row, cell: Cell, metric: str) -> str:
    """Return the change, the loss in brackets where there is no change, or why there is neither."""
    if cell.mean is None:
        reason = short_note(cell.note or "")
        return reason if len(reason) <= LONGEST_REASON else "–"  # the notes below have all of it
    if _own(row, column):
        return printed(cell.mean, metric)
    if cell.change is None:
        return f"({printed(cell.mean, metric)})"
    return printed_change(cell.change, metric).replace("-", "−")


def _head(column: Column) -> str:
    name = f"{number(column.multiple)}x" + (" = T" if column.multiple == 1 else "")
    return name if column.window is None else f"{tokens(column.window)}\n{name}"


def _norm(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> Normalize:
    """Give as many decades to worse as to better, so that 0 is white; linear within the margin of `same`."""
    cells = [cell for one in comparisons for row in one.rows for cell in row.cells]
    changes = [abs(cell.change) for cell in cells if cell.change is not None and math.isfinite(cell.change)]
    margins = [unit * one.header["margins"]["same"] for one in comparisons if (unit := per_bit(one, runs))]
    linear = max(margins, default=LINEAR)
    most = max([*changes, 2 * linear]) / DARKEST
    return SymLogNorm(linear, vmin=-most, vmax=most, base=10)
