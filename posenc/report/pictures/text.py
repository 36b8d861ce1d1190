"""Draw small plots in plain characters, 80 columns wide, for a terminal or a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np

from posenc.report.pictures.panels import LOG_RANGE, Curves, Map, Numbers, Picture

COLUMNS = 80
LEFT = 11  # columns of the numbers beside a plot
WIDE = COLUMNS - LEFT - 2
HIGH = 12
MAP_HIGH = 14
LETTERS = "abcdefghij"
SHADES = " .:-=+*#%@"


def text_plot(picture: Picture) -> str:
    """Draw the panels that say most, one below the other."""
    parts = ["\n".join(_fold(line) for line in [picture.title, *picture.notes])]
    for panel in picture.panels:
        if panel.brief and isinstance(panel, Curves):
            parts.append(_curves(panel))
        elif panel.brief and isinstance(panel, Map):
            parts.append(_map(panel))
    return "\n\n".join(parts)


def _curves(panel: Curves) -> str:
    x = [_scaled(line.x, panel.x_scale) for line in panel.lines]
    y = [_scaled(line.y, panel.y_scale) for line in panel.lines]
    marks, y_marks = (list(some.values()) for some in (panel.marks, panel.y_marks))
    left, right = _range(x)
    bottom, top = _range([*y, _scaled(y_marks, panel.y_scale)])
    if panel.y_scale == "log":
        bottom = max(bottom, top - np.log(LOG_RANGE))
    grid = np.full((HIGH, WIDE), " ")
    columns = _place(_scaled(marks, panel.x_scale), left, right, WIDE)
    grid[:, columns[(columns >= 0) & (columns < WIDE)]] = ":"
    for row in _place(_scaled(y_marks, panel.y_scale), top, bottom, HIGH):
        if 0 <= row < HIGH:
            grid[row][grid[row] == " "] = "-"
    for letter, xs, ys in zip(LETTERS, x, y, strict=False):
        shown = np.isfinite(ys)
        columns, rows = _place(xs[shown], left, right, WIDE), _place(ys[shown], top, bottom, HIGH)
        inside = (columns >= 0) & (columns < WIDE) & (rows >= 0) & (rows < HIGH)
        grid[rows[inside], columns[inside]] = letter
    logs = {"symlog": " (log axis)", "log": " (log axis)"}
    key = [f"{letter} {line.label}" for letter, line in zip(LETTERS, panel.lines, strict=False)]
    key += [f": {' and '.join(panel.marks)}"] if marks else []
    key += [f"- {' and '.join(filter(None, panel.y_marks))}"] if any(panel.y_marks) else []
    head = f"{panel.title}: {panel.y_label}{logs.get(panel.y_scale, '')}"
    below = panel.x_label + logs.get(panel.x_scale, "")
    x_ends, y_ends = _back(panel.x_scale, left, right), _back(panel.y_scale, top, bottom)
    return _framed(head, grid, y_ends, x_ends, below, key)


def _map(panel: Map) -> str:
    z, order = (panel.z, panel.y) if panel.matrix else (panel.z[::-1], panel.y[::-1])
    low, high = _range([z])
    rows = np.linspace(0, len(z) - 1, min(MAP_HIGH, len(z))).round().astype(int)
    columns = np.linspace(0, z.shape[1] - 1, WIDE).round().astype(int)
    share = np.nan_to_num((z[np.ix_(rows, columns)] - low) / (high - low))
    grid = np.array(list(SHADES))[(share * (len(SHADES) - 1)).round().astype(int)]
    key = "@ sees" if panel.binary else f"' ' {low:.3g} .. '@' {high:.3g} {panel.z_label}"
    x_ends, y_ends = (panel.x[0], panel.x[-1]), (order[0], order[-1])
    return _framed(f"{panel.title}: {panel.y_label}", grid, y_ends, x_ends, panel.x_label, [key])


def _framed(
    title: str,
    grid: np.ndarray[tuple[int, int], np.dtype[np.str_]],
    y_ends: tuple[float, float],  # top, bottom
    x_ends: tuple[float, float],
    x_label: str,
    key: list[str],
) -> str:
    lines = [_fold(title)]
    names = [f"{y_ends[0] + 0.0:.4g}", *[""] * (len(grid) - 2), f"{y_ends[1] + 0.0:.4g}"]
    lines += [f"{name:>{LEFT}} |{''.join(row)}".rstrip() for name, row in zip(names, grid, strict=False)]
    first, last = (f"{end:.4g}" for end in x_ends)
    lines.append(" " * LEFT + " +" + "-" * WIDE)
    lines.append(" " * (LEFT + 2) + first + x_label.center(WIDE - len(first) - len(last)) + last)
    return "\n".join([*lines, _fold("   ".join(key))])


def _fold(line: str) -> str:
    return textwrap.fill(line, COLUMNS, subsequent_indent="  ")


def _scaled(x: Numbers | Sequence[float], scale: str) -> Numbers:
    x = np.asarray(x, float)
    with np.errstate(divide="ignore"):
        return np.log1p(x) if scale == "symlog" else np.log(x) if scale == "log" else x


def _back(scale: str, *ends: float) -> tuple[float, float]:
    first, last = (float({"symlog": np.expm1, "log": np.exp}.get(scale, float)(end)) for end in ends)
    return first, last


def _range(values: list[Numbers]) -> tuple[float, float]:
    every = np.concatenate([one.ravel() for one in values])
    low, high = float(every[np.isfinite(every)].min()), float(every[np.isfinite(every)].max())
    return (low, high) if high > low else (low - 1, high + 1)


def _place(x: Numbers, low: float, high: float, cells: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.round((x - low) / (high - low) * (cells - 1)).astype(np.intp)
