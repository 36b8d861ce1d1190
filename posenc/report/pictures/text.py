"""Write what a picture shows as numbers, 80 columns wide, for a terminal or a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import numpy as np

from posenc.report.pictures.panels import Curves, Map, Picture

COLUMNS = 80
NUMBER = 8  # columns of a number
NAME = 24  # of a line's name
MOST = (COLUMNS - NAME) // NUMBER


def picture_text(picture: Picture) -> str:
    """Return title, notes and the panels that say most, one below the other."""
    parts = [[picture.title, *picture.notes]]
    parts += [
        [*(_curves(panel) if isinstance(panel, Curves) else _map(panel))]
        for panel in picture.panels
        if panel.brief
    ]
    return "\n\n".join("\n".join(_fold(line) for line in lines) for lines in parts)


def _curves(panel: Curves) -> Iterator[str]:
    """Yield a row for each line: its values at the ends, at the marks, and at powers of 4 between them."""
    every = np.unique(np.concatenate([line.x for line in panel.lines]))
    powers = [4.0**k for k in range(20) if 4.0**k < every[-1]]
    between = np.linspace(every[0], every[-1], MOST) if panel.x_scale == "linear" else powers
    wanted = [every[0], *between, *panel.marks.values(), every[-1]]
    near = np.abs(every[:, None] - np.array(wanted)).argmin(0)
    at = np.unique(every[near]).tolist()
    at = at if len(at) <= MOST else [at[0], *at[1 - MOST :]]
    names = {value: name for name, value in panel.marks.items()}
    yield f"{panel.title}: {panel.y_label}"
    yield panel.x_label.ljust(NAME) + "".join(f"{names.get(x, f'{x:g}'):>{NUMBER}}" for x in at)
    for line in panel.lines:
        known = dict(zip(line.x.tolist(), line.y.tolist(), strict=True))
        values = [_number(known[x]) if x in known else "" for x in at]
        yield (line.label[: NAME - 1].ljust(NAME) + "".join(f"{v:>{NUMBER}}" for v in values)).rstrip()
    marks = {**panel.marks, **panel.y_marks}
    if any(marks):
        yield ", ".join(f"{name} = {value:g}" for name, value in marks.items() if name)


def _number(value: float) -> str:
    return f"{value + 0.0:,.0f}" if 100 <= abs(value) < 1e6 else f"{value + 0.0:.3g}"


def _map(panel: Map) -> Iterator[str]:
    """Yield what the last row of a map holds."""
    yield f"{panel.title}: the last query sees {np.nansum(panel.z[-1]):.0f} of {panel.z.shape[1]} keys"


def _fold(line: str) -> str:
    return textwrap.fill(line, COLUMNS, subsequent_indent="  ") if len(line) > COLUMNS else line
