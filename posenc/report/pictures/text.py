"""Draw small plots in plain characters, 80 columns wide, for a terminal or a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from posenc.report.pictures.panels import LOG_RANGE, Curves, Map, Numbers, Picture

COLUMNS = 80
LEFT = 11  # columns of the numbers beside a plot
WIDE = COLUMNS - LEFT - 2
HIGH = 12
LETTERS = "abcdefghij"
SHADES = " .:-=+*#%@"
FORWARD: dict[str, Callable[..., Any]] = {"linear": np.asarray, "symlog": np.log1p, "log": np.log}
BACK: dict[str, Callable[..., Any]] = {"linear": float, "symlog": np.expm1, "log": np.exp}

Grid = np.ndarray[tuple[int, int], np.dtype[np.str_]]
Cells = np.ndarray[tuple[int], np.dtype[np.intp]]


def text_plot(picture: Picture) -> str:
    """Draw the panels that say most, one below the other."""
    parts = ["\n".join(_fold(line) for line in [picture.title, *picture.notes])]
    for panel in picture.panels:
        if panel.brief:
            parts.append(_curves(panel) if isinstance(panel, Curves) else _map(panel))
    return "\n\n".join(parts)


def _curves(panel: Curves) -> str:
    with np.errstate(divide="ignore"):
        x = [FORWARD[panel.x_scale](line.x) for line in panel.lines]
        y = [FORWARD[panel.y_scale](line.y) for line in panel.lines]
    marks = FORWARD[panel.x_scale](np.array([*panel.marks.values()]))
    y_marks = FORWARD[panel.y_scale](np.array([*panel.y_marks.values()]))
    left, right = _range(x)
    bottom, top = _range([*y, y_marks])
    if panel.y_scale == "log":
        bottom = max(bottom, top - np.log(LOG_RANGE))
    grid = np.full((HIGH, WIDE), " ")
    grid[_place(y_marks[y_marks >= bottom], top, bottom, HIGH)] = "-"
    columns = _place(marks, left, right, WIDE)
    grid[:, columns[(columns >= 0) & (columns < WIDE)]] = ":"
    for letter, xs, ys in zip(LETTERS, x, y, strict=False):
        shown = np.isfinite(ys) & (ys >= bottom)
        grid[_place(ys[shown], top, bottom, HIGH), _place(xs[shown], left, right, WIDE)] = letter
    key = [f"{letter} {line.label}" for letter, line in zip(LETTERS, panel.lines, strict=False)]
    key += [f": {' and '.join(panel.marks)}"] if panel.marks else []
    key += [f"- {' and '.join(panel.y_marks)}"] if any(panel.y_marks) else []
    x_label, y_label = (
        name + ("" if scale == "linear" else " (log axis)")
        for name, scale in ((panel.x_label, panel.x_scale), (panel.y_label, panel.y_scale))
    )
    x_ends = [BACK[panel.x_scale](end) for end in (left, right)]
    y_ends = [BACK[panel.y_scale](end) for end in (top, bottom)]
    return _framed(f"{panel.title}: {y_label}", grid, y_ends, x_ends, x_label, key)


def _map(panel: Map) -> str:
    z, order = (panel.z, panel.y) if panel.matrix else (panel.z[::-1], panel.y[::-1])
    low, high = _range([z])
    rows = np.linspace(0, len(z) - 1, min(HIGH, len(z))).round().astype(int)
    columns = np.linspace(0, z.shape[1] - 1, WIDE).round().astype(int)
    share = np.nan_to_num((z[np.ix_(rows, columns)] - low) / (high - low))
    grid = np.array(list(SHADES))[(share * (len(SHADES) - 1)).round().astype(int)]
    key = "@ sees" if panel.binary else f"' ' {low:.3g} .. '@' {high:.3g} {panel.z_label}"
    y_ends, x_ends = [order[0], order[-1]], [panel.x[0], panel.x[-1]]
    return _framed(f"{panel.title}: {panel.y_label}", grid, y_ends, x_ends, panel.x_label, [key])


def _framed(
    title: str, grid: Grid, y_ends: Sequence[float], x_ends: Sequence[float], x_label: str, key: list[str]
) -> str:
    """Put ends and labels around a grid; `y_ends` from the top."""
    names = [f"{y_ends[0] + 0.0:.4g}", *[""] * (len(grid) - 2), f"{y_ends[1] + 0.0:.4g}"]
    rows = [f"{name:>{LEFT}} |{''.join(row)}".rstrip() for name, row in zip(names, grid, strict=False)]
    first, last = (f"{end:.4g}" for end in x_ends)
    axis = " " * LEFT + " +" + "-" * WIDE
    below = " " * (LEFT + 2) + first + x_label.center(WIDE - len(first) - len(last)) + last
    return "\n".join([_fold(title), *rows, axis, below, _fold("   ".join(key))])


def _fold(line: str) -> str:
    return textwrap.fill(line, COLUMNS, subsequent_indent="  ")


def _range(values: list[Numbers]) -> tuple[float, float]:
    every = np.concatenate([one.ravel() for one in values])
    low, high = float(every[np.isfinite(every)].min()), float(every[np.isfinite(every)].max())
    return (low, high) if high > low else (low - 1, high + 1)


def _place(x: Numbers, low: float, high: float, cells: int) -> Cells:
    """Return the cells that numbers fall into."""
    return np.round((x - low) / (high - low) * (cells - 1)).astype(np.intp)
