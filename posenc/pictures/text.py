"""Write a picture as text: the numbers behind its panels, for a terminal."""

from __future__ import annotations

import textwrap

import numpy as np

from posenc.pictures.panels import Curves, Map, Picture
from posenc.report.tables import Table, table_of_rows
from posenc.report.terminal import table_text

WIDTH = 80  # columns of a terminal
MOST_NUMBERS = 7  # of a line


def picture_text(picture: Picture) -> str:
    """Return title, notes and the numbers of each panel, one below the other."""
    head = [textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in (picture.title, *picture.notes)]
    blocks = ["\n".join(head)]
    for panel in picture.panels:
        blocks.append(table_text(_panel_table(panel), WIDTH).rstrip("\n"))
    return "\n\n".join(blocks)


def _panel_table(panel: Curves | Map) -> Table:
    if isinstance(panel, Map):
        seen_keys = f"{np.nansum(panel.seen[-1]):.0f} of {panel.seen.shape[1]}"
        return table_of_rows(["", "keys seen"], [["the last query", seen_keys]], panel.title)
    printed = _printed_x(panel)
    mark_names = {x: name for name, x in panel.marks.items()}
    heads = [mark_names.get(x, f"{x:g}") for x in printed]
    rows = []
    for line in panel.lines:
        value_at = dict(zip(line.x.tolist(), line.y.tolist(), strict=True))
        texts = [_number(value_at[x]) if x in value_at else "" for x in printed]
        rows.append([line.label, *texts])
    return table_of_rows([panel.x_label, *heads], rows, f"{panel.title}: {panel.y_label}")


def _printed_x(panel: Curves) -> list[float]:
    """Return the values of x that are printed: the ends, the marks and some between them."""
    measured = np.unique(np.concatenate([line.x for line in panel.lines]))
    first = measured[0]
    last = measured[-1]
    if panel.x_scale == "linear":
        between = np.linspace(first, last, MOST_NUMBERS).tolist()
    else:
        between = [4.0**power for power in range(20) if 4.0**power < last]
    targets = np.array([first, *between, *panel.marks.values(), last])
    nearest = np.abs(measured[:, None] - targets).argmin(0)  # by target, the index of a measured place
    printed: list[float] = np.unique(measured[nearest]).tolist()
    if len(printed) > MOST_NUMBERS:
        return [printed[0], *printed[1 - MOST_NUMBERS :]]
    return printed


def _number(value: float) -> str:
    value = value + 0.0  # no minus before a zero
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"
