"""Write a picture as text: the numbers behind its panels, for a terminal."""

from __future__ import annotations

import textwrap

import numpy as np

from posenc.evaluation.blocks import evenly_spaced
from posenc.pictures.panels import Curves, KeyMask, Panel, Picture, VectorMap
from posenc.pictures.sentences import number_text
from posenc.report.tables import Table, table_of_rows
from posenc.report.terminal import table_text

WIDTH = 80  # columns of a terminal
MOST_NUMBERS = 7  # printed of each curve


def picture_text(picture: Picture) -> str:
    """Return title, notes, and of each panel its numbers and what to see, one below the other."""
    head = [_filled(line) for line in (picture.title, *picture.notes)]
    blocks = ["\n".join(head)]
    for panel in picture.panels:
        table = table_text(_panel_table(panel), WIDTH).rstrip("\n")
        blocks.append(f"{table}\n{_filled(panel.sentence)}")
    return "\n\n".join(blocks)


def _filled(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent="  ")


def _panel_table(panel: Panel) -> Table:
    """Return the numbers of a panel: a row for each curve or position, or how many keys a mask lets see."""
    if isinstance(panel, VectorMap):
        return _vectors_table(panel)
    if isinstance(panel, KeyMask):
        seen_keys = f"{panel.seen_by_last} of {panel.keys}"
        return table_of_rows(["", "keys seen"], [["the last query", seen_keys]], panel.title)
    printed = _printed_x(panel)
    name_of_mark = {x: name for name, x in panel.marks.items()}  # a curve has the very numbers of its marks
    heads = [name_of_mark.get(x, f"{x:g}") for x in printed]
    rows = []
    for line in panel.lines:
        value_at = dict(zip(line.x.tolist(), line.y.tolist(), strict=True))
        texts = [number_text(value_at[x]) if x in value_at else "" for x in printed]
        rows.append([line.label, *texts])
    return table_of_rows([panel.x_label, *heads], rows, f"{panel.title}: {panel.y_label}")


def _vectors_table(panel: VectorMap) -> Table:
    """Return a few rows and columns of a map of vectors."""
    rows = _few_indices(len(panel.positions))
    columns = _few_indices(len(panel.dimensions))
    heads = [f"{panel.dimensions[column]:g}" for column in columns]
    printed = []
    for row in rows:
        numbers = [number_text(panel.values[row, column]) for column in columns]
        printed.append([f"{panel.positions[row]:g}", *numbers])
    return table_of_rows(["position", *heads], printed, f"{panel.title}: number of the vector")


def _few_indices(count: int) -> list[int]:
    """Return up to MOST_NUMBERS of the indices 0..count-1, the first and the last among them."""
    steps: list[int] = evenly_spaced(count, min(count, MOST_NUMBERS)).tolist()
    return steps


def _printed_x(panel: Curves) -> list[float]:
    """Return the values of x to print: measured ones near the ends, near the marks and between them."""
    measured = np.unique(np.concatenate([line.x for line in panel.lines]))  # ascending
    first = float(measured[0])
    last = float(measured[-1])
    places = [first, *panel.marks.values(), last]
    if panel.x_scale == "linear":
        places += np.linspace(first, last, MOST_NUMBERS).tolist()
    else:
        places += powers_of_four(last)
    # Only measured points are printed: a number between two of them would be made up.
    nearest = {float(measured[np.abs(measured - x).argmin()]) for x in places}
    printed = sorted(nearest)
    if len(printed) <= MOST_NUMBERS:
        return printed
    # The first one and the marks stay. Of the others those beyond T say most.
    always = {first, *(x for x in printed if x in panel.marks.values())}
    droppable = [x for x in printed if x not in always]
    return sorted([*always, *droppable[len(always) - MOST_NUMBERS :]])


def powers_of_four(end: float) -> list[float]:
    """Return 1, 4, 16, ... below `end`."""
    powers = [1.0]
    while 4 * powers[-1] < end:
        powers.append(4 * powers[-1])
    return powers if end > 1 else []
