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
from matplotlib.text import Text

from posenc.report.plots.canvas import SMALLEST, finish, number, sheet, text_width
from posenc.report.plots.curves import LINEAR, tokens
from posenc.report.plots.series import Names, missing, panel_titles, per_bit, short_unit, source
from posenc.results.cells import NOT_MEASURED, Cell, short_note
from posenc.results.comparison import Column, Comparison, Row
from posenc.results.load import Run
from posenc.results.schema import printed, printed_change

COLOURS = "RdBu_r"  # red: worse than at T; both ends as dark, so that it is a distance in grey, too
DARKEST = 0.86  # of the colours: their ends are too dark for black numbers
NOTHING = "–"
ROW, HEAD, FOOT, TITLE = 0.19, 0.38, 0.06, 0.2  # inches
EMPTY: dict[str, Any] = {"facecolor": "white", "edgecolor": "white", "linewidth": 1.0}
GREY = "#F4F4F4"
MISSING: dict[str, Any] = {"facecolor": GREY, "hatch": "////", "edgecolor": "#D5D5D5", "linewidth": 0}


def heatmap(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """Make the figure, wider than `width` where numbers need it; the column of T shows the loss itself."""
    names, titles = Names(comparisons), panel_titles(comparisons)
    heights = [
        HEAD + FOOT + ROW * len(one.rows) + (TITLE if title else 0.0)
        for one, title in zip(comparisons, titles, strict=True)
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
        assert text.axes is not None
        if text.get_window_extent().width > 0.98 * text.axes.bbox.width / text.axes.get_xlim()[1]:
            text.set_text(NOTHING)
    return figure


def _words(comparisons: Sequence[Comparison]) -> str:
    unit, more = short_unit(comparisons[0])
    parts = [source(comparisons), f"Change against the loss at T in {unit}: red is worse, blue is better."]
    parts += ["Uncoloured: the loss at T itself.", more]
    rows = [row for one in comparisons for row in one.rows]
    if any(row.extend is not None for row in rows):
        parts.append("Extensions: against the same run without one.")
    if seeds := sorted({cell.seeds for row in rows for cell in row.cells if cell.seeds}):
        over = " to ".join(map(str, sorted({seeds[0], seeds[-1]})))
        parts.append("One seed." if over == "1" else f"Means over {over} seeds.")
    return " ".join(filter(None, parts))


def _needed(figure: Figure, comparisons: Sequence[Comparison], names: Names) -> float:
    """Measure what the names of the rows and the numbers take up: inches."""
    labels, cells = [""], [""]
    for one in comparisons:
        labels += [names.of(row) for row in one.rows]
        cells += [line for column in one.columns for line in _head(column).split("\n")]
        cells += [
            _text(column, row, cell, one.header["metric"])
            for row in one.rows
            for column, cell in zip(one.columns, row.cells, strict=True)
            if cell.mean is not None
        ]
    name, cell_width = (max(text_width(figure, text) for text in some) for some in (labels, cells))
    return name + 0.2 + (cell_width + 0.08) * max((len(one.columns) for one in comparisons), default=0)


def _draw(axes: Axes, comparison: Comparison, names: Names, norm: Normalize) -> list[Text]:
    """Draw the cells; return the reasons that stand in those without a number."""
    colours, rows, columns = matplotlib.colormaps[COLOURS], comparison.rows, comparison.columns
    reasons = []
    for i, row in enumerate(rows):
        for j, (cell, column) in enumerate(zip(row.cells, columns, strict=True)):
            ink, look = "0.1", dict(EMPTY)
            if cell.mean is None:
                look, ink = MISSING, "0.35"
            elif not _own(row, column) and cell.change is not None:
                red, green, blue, _ = look["facecolor"] = colours(float(norm(cell.change)))
                ink = "white" if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else "0.1"
            axes.add_patch(Rectangle((j, i), 1, 1, **look))
            shown = _text(column, row, cell, comparison.header["metric"])
            text = axes.text(j + 0.5, i + 0.52, shown, ha="center", va="center", fontsize=SMALLEST, color=ink)
            if cell.mean is None:
                text.set_bbox({"facecolor": GREY, "edgecolor": "none", "pad": 1})
                reasons.append(text)
            elif _own(row, column):
                text.set_fontweight("bold")
    axes.set(xlim=(0, max(len(columns), 1)), ylim=(max(len(rows), 1), 0))
    axes.set_xticks([j + 0.5 for j in range(len(columns))], [_head(column) for column in columns])
    axes.set_yticks([i + 0.5 for i in range(len(rows))], [names.of(row) for row in rows])
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    return reasons


def _own(row: Row, column: Column) -> bool:
    """Tell whether this is what the changes of the row are against."""
    return row.extend is None and column.multiple == 1


def _text(column: Column, row: Row, cell: Cell, metric: str) -> str:
    """Return the change, the loss in brackets where there is no change, or why there is neither."""
    if cell.mean is None:
        note = cell.note or NOTHING
        return note if len(note) <= len(NOT_MEASURED) else short_note(note)
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
