"""Change against the loss at T by row and context: colours and numbers; what is missing says why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from posenc.report.plots.canvas import SMALLEST, finish, sheet, text_width
from posenc.report.plots.lines import tokens
from posenc.report.plots.members import per_bit
from posenc.report.plots.scale import number
from posenc.report.plots.series import Names, missing, panel_titles, short_unit, source
from posenc.results.cells import NOT_MEASURED, Cell, short_note
from posenc.results.comparison import Column, Comparison, Row
from posenc.results.load import Run
from posenc.results.schema import printed, printed_change

COLOURS = "RdBu_r"  # red: worse than at T; both ends as dark, so that it is a distance in grey, too
DARKEST = 0.86  # of the colours: their ends are too dark for black numbers
LINEAR = 0.02  # of the metric, where there is no margin
NOTHING = "–"
ROW, HEAD, FOOT = 0.19, 0.38, 0.06  # inches
EMPTY: dict[str, Any] = {"facecolor": "white", "edgecolor": "white", "linewidth": 1.0}
MISSING: dict[str, Any] = {"facecolor": "#F4F4F4", "hatch": "////", "edgecolor": "#D5D5D5", "linewidth": 0}


def heatmap(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """The figure, wider than `width` where its numbers need it; the column of T shows the loss itself."""
    names, titles = Names(comparisons), panel_titles(comparisons)
    titled = [0.2 if title else 0.0 for title in titles]
    heights = [
        HEAD + FOOT + ROW * len(one.rows) + more for one, more in zip(comparisons, titled, strict=True)
    ]
    figure = sheet(width, sum(heights))
    figure.set_figwidth(max(width, _needed(figure, comparisons, names)))
    norm = _norm(runs, comparisons)
    grid = figure.subplots(len(comparisons), 1, squeeze=False, height_ratios=heights)
    reasons: list[Text] = []
    for comparison, axes, title in zip(comparisons, grid[:, 0], titles, strict=True):
        reasons += _draw(axes, comparison, names, norm)
        axes.set_title(title, pad=4).set_in_layout(bool(title))
    finish(figure, [], [_words(comparisons), *names.policies, *missing(comparisons, names)])
    for text in reasons:  # one that does not fit its cell stands below with the others
        if (
            text.axes is not None
            and text.get_window_extent().width > 0.98 * text.axes.bbox.width / text.axes.get_xlim()[1]
        ):
            text.set_text(NOTHING)
    return figure


def _words(comparisons: Sequence[Comparison]) -> str:
    unit, more = short_unit(comparisons[0])
    parts = [source(comparisons), f"Change against the loss at T in {unit}: red is worse, blue is better."]
    parts += ["Uncoloured: the loss at T itself.", more]
    if any(row.extend is not None for one in comparisons for row in one.rows):
        parts.append("Extensions: against the same run without one.")
    seeds = sorted(
        {cell.seeds for one in comparisons for row in one.rows for cell in row.cells if cell.seeds}
    )
    if seeds == [1]:
        parts.append("One seed.")
    elif seeds:
        parts.append(f"Means over {f'{seeds[0]} to ' if len(seeds) > 1 else ''}{seeds[-1]} seeds.")
    return " ".join(filter(None, parts))


def _needed(figure: Figure, comparisons: Sequence[Comparison], names: Names) -> float:
    """Inches that the names of the rows and the numbers take up."""
    rows = [(one, row) for one in comparisons for row in one.rows]
    cells = [
        _text(column, row, cell, one.header["metric"])
        for one, row in rows
        for column, cell in zip(one.columns, row.cells, strict=True)
        if cell.mean is not None
    ]
    cells += [line for one in comparisons for column in one.columns for line in _head(column).split("\n")]
    name = max((text_width(figure, names.of(row), SMALLEST) for _, row in rows), default=0.0)
    cell_width = max((text_width(figure, text, SMALLEST) for text in cells), default=0.0) + 0.08
    return name + 0.2 + cell_width * max((len(one.columns) for one in comparisons), default=0)


def _draw(axes: Axes, comparison: Comparison, names: Names, norm: Normalize) -> list[Text]:
    """Draw the cells; returns the reasons that stand in those without a number."""
    colours, rows, reasons = matplotlib.colormaps[COLOURS], comparison.rows, []
    for i, row in enumerate(rows):
        for j, (cell, column) in enumerate(zip(row.cells, comparison.columns, strict=True)):
            ink, look = "0.1", dict(EMPTY)
            if cell.mean is None:
                look, ink = MISSING, "0.35"
            elif not _own(row, column) and cell.change is not None:
                red, green, blue, _ = colours(float(norm(cell.change)))
                look["facecolor"] = (red, green, blue)
                ink = "white" if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else "0.1"
            axes.add_patch(Rectangle((j, i), 1, 1, **look))
            shown = _text(column, row, cell, comparison.header["metric"])
            text = axes.text(j + 0.5, i + 0.52, shown, ha="center", va="center", fontsize=SMALLEST, color=ink)
            if cell.mean is None:
                text.set_bbox({"facecolor": MISSING["facecolor"], "edgecolor": "none", "pad": 1})
                reasons.append(text)
            elif _own(row, column):
                text.set_fontweight("bold")
    axes.set_xlim(0, max(len(comparison.columns), 1))
    axes.set_ylim(max(len(rows), 1), 0)
    axes.set_xticks(
        [j + 0.5 for j in range(len(comparison.columns))], [_head(column) for column in comparison.columns]
    )
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [names.of(row) for row in rows])
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return reasons


def _own(row: Row, column: Column) -> bool:
    """Whether this is what the changes of the row are against."""
    return row.extend is None and column.multiple == 1


def _text(column: Column, row: Row, cell: Cell, metric: str) -> str:
    """The change, the loss in brackets where there is no change, or why there is neither."""
    if cell.mean is None:
        return (
            (cell.note if len(cell.note) <= len(NOT_MEASURED) else short_note(cell.note))
            if cell.note
            else NOTHING
        )
    if _own(row, column):
        return printed(cell.mean, metric)
    if cell.change is None:
        return f"({printed(cell.mean, metric)})"
    return printed_change(cell.change, metric).replace("-", "−")


def _head(column: Column) -> str:
    name = number(column.multiple) + ("x = T" if column.multiple == 1 else "x")
    return name if column.window is None else f"{tokens(column.window)}\n{name}"


def _norm(runs: Sequence[Run], comparisons: Sequence[Comparison]) -> Normalize:
    """As many decades of worse as of better, so that 0 is white; linear within the margin of `same`."""
    changes = [
        abs(cell.change)
        for one in comparisons
        for row in one.rows
        for cell in row.cells
        if cell.change is not None and math.isfinite(cell.change)
    ]
    units = [unit * one.header["margins"]["same"] for one in comparisons if (unit := per_bit(one, runs))]
    linear = max(units, default=LINEAR)
    most = max([*changes, 2 * linear]) / DARKEST
    return SymLogNorm(linear, vmin=-most, vmax=most, base=10)
