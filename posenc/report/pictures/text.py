"""Small plots in plain characters, 80 columns wide, for a terminal or a pipe."""

from __future__ import annotations

import textwrap

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
    """The panels that say most, one below the other."""
    parts = ["\n".join(_fold(line) for line in [picture.title, *picture.notes])]
    for panel in picture.panels:
        if panel.brief and isinstance(panel, Curves):
            parts.append(_curves(panel))
        elif panel.brief and isinstance(panel, Map):
            parts.append(_map(panel))
    return "\n\n".join(parts)


def _curves(panel: Curves) -> str:
    grid = [[" "] * WIDE for _ in range(HIGH)]
    x = [_scaled(line.x, panel.x_scale) for line in panel.lines]
    y = [_scaled(line.y, panel.y_scale) for line in panel.lines]
    left, right = _range(x, [])
    bottom, top = _range(y, list(_scaled(np.array([*panel.y_marks.values()], float), panel.y_scale)))
    if panel.y_scale == "log":
        bottom = max(bottom, top - np.log(LOG_RANGE))
    for at in panel.marks.values():
        column = _place(_scaled(np.array([at]), panel.x_scale), left, right, WIDE)[0]
        if 0 <= column < WIDE:
            for row in grid:
                row[column] = ":"
    for at in panel.y_marks.values():
        up = _place(_scaled(np.array([at]), panel.y_scale), bottom, top, HIGH)[0]
        if 0 <= up < HIGH:
            grid[HIGH - 1 - up] = ["-" if cell == " " else cell for cell in grid[HIGH - 1 - up]]
    for letter, xs, ys in zip(LETTERS, x, y, strict=False):
        seen = np.isfinite(ys)
        columns, rows = _place(xs[seen], left, right, WIDE), _place(ys[seen], bottom, top, HIGH)
        for column, up in zip(columns, rows, strict=True):
            if 0 <= column < WIDE and 0 <= up < HIGH:
                grid[HIGH - 1 - up][column] = letter
    names = {0: _back(top, panel.y_scale), HIGH - 1: _back(bottom, panel.y_scale)}
    ends = (_back(left, panel.x_scale), _back(right, panel.x_scale))
    scale = {"symlog": " (log axis)", "log": " (log axis)"}
    lines = [f"{letter} {line.label}" for letter, line in zip(LETTERS, panel.lines, strict=False)]
    lines += [f": {' and '.join(panel.marks)}"] if panel.marks else []
    lines += [f"- {' and '.join(name for name in panel.y_marks if name)}"] if any(panel.y_marks) else []
    head = f"{panel.title}: {panel.y_label}{scale.get(panel.y_scale, '')}"
    return _framed(head, grid, names, ends, panel.x_label + scale.get(panel.x_scale, ""), lines)


def _map(panel: Map) -> str:
    z = panel.z if panel.matrix else panel.z[::-1]
    finite = z[np.isfinite(z)]
    low, high = float(finite.min()), float(finite.max())
    rows = np.linspace(0, len(z) - 1, min(MAP_HIGH, len(z))).round().astype(int)
    columns = np.linspace(0, z.shape[1] - 1, WIDE).round().astype(int)
    share = (z[np.ix_(rows, columns)] - low) / ((high - low) or 1.0)
    level = np.where(np.isfinite(share), np.nan_to_num(share) * (len(SHADES) - 1), 0).round().astype(int)
    grid = [[SHADES[cell] for cell in row] for row in level]
    ends = (float(panel.x[0]), float(panel.x[-1]))
    order = panel.y if panel.matrix else panel.y[::-1]
    names = {0: float(order[0]), len(grid) - 1: float(order[-1])}
    what = "@ sees" if panel.binary else f"' ' {low:.3g} .. '@' {high:.3g} {panel.z_label}"
    return _framed(f"{panel.title}: {panel.y_label}", grid, names, ends, panel.x_label, [what])


def _framed(
    title: str,
    grid: list[list[str]],
    names: dict[int, float],
    ends: tuple[float, float],
    x_label: str,
    legend: list[str],
) -> str:
    lines = [_fold(title)]
    for i, row in enumerate(grid):
        name = f"{names[i] + 0.0:.4g}" if i in names else ""
        lines.append(f"{name:>{LEFT}} |{''.join(row)}".rstrip())
    lines.append(" " * LEFT + " +" + "-" * WIDE)
    first, last = f"{ends[0]:.4g}", f"{ends[1]:.4g}"
    lines.append(" " * (LEFT + 2) + first + x_label.center(WIDE - len(first) - len(last)) + last)
    lines.append(_fold("   ".join(part for part in legend if part)))
    return "\n".join(lines)


def _fold(line: str) -> str:
    return textwrap.fill(line, COLUMNS, subsequent_indent="  ")


def _scaled(x: Numbers, scale: str) -> Numbers:
    with np.errstate(divide="ignore"):
        return np.log1p(x) if scale == "symlog" else np.log(x) if scale == "log" else x


def _back(value: float, scale: str) -> float:
    return float({"symlog": np.expm1, "log": np.exp}.get(scale, float)(value))


def _range(values: list[Numbers], more: list[float]) -> tuple[float, float]:
    every = np.concatenate([*values, np.array(more, float)])
    every = every[np.isfinite(every)]
    low, high = float(every.min()), float(every.max())
    return (low, high) if high > low else (low - 1, high + 1)


def _place(x: Numbers, low: float, high: float, cells: int) -> list[int]:
    return [int(i) for i in np.round((x - low) / (high - low) * (cells - 1))]
