"""Draw harm, use and attention of each encoding by what makes weights of scores: docs/records/study-softmax.

    python scripts/docs/softmax.py docs/pictures/study/softmax.png

A row is an encoding under one option. Where two dots are joined, the hollow one is at T and the filled one at
8T. Use is hollow where no seed learned the task.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import altair as alt
from figures import png_of
from overview import Mark, Panel, harm_interval, panel_chart
from posenc_output import last_cell
from softmax_tables import OptionRow, option_rows

from posenc.report.charts.looks import data_of

FOLDER = "study-softmax"
PANELS = (
    Panel(
        name="harm",
        title="harm: change at 8T, nats",
        width=84,
        scale=alt.Scale(type="symlog", constant=0.02, domain=[-0.02, 2]),
        ticks=(0, 0.05, 0.5),
        has_zero_line=True,
    ),
    Panel(
        name="use",
        title="use: found at 8T, %",
        width=68,
        scale=alt.Scale(domain=[0, 100]),
        ticks=None,
        has_zero_line=False,
    ),
    Panel(
        name="entropy",
        title="entropy, T to 8T",
        width=68,
        scale=alt.Scale(zero=False),
        ticks=None,
        has_zero_line=False,
    ),
    Panel(
        name="first",
        title="first token, %, T to 8T",
        width=74,
        scale=alt.Scale(zero=True),
        ticks=None,
        has_zero_line=False,
    ),
    Panel(
        name="variance",
        title="variance, 8T over T",
        width=68,
        scale=alt.Scale(zero=True),
        ticks=None,
        has_zero_line=False,
    ),
)


def marks_of(row: OptionRow) -> list[Mark]:
    """Return the dots of a row in every panel."""
    name = f"{row.encoding}, {row.option}"
    low, high = harm_interval(last_cell(row.row))
    found = row.row["recall"]["beyond"][-1]
    found_low, found_high = (100 * end for end in found["ci95"])
    has_learned = bool(row.row["recall"]["learned"])
    marks = [
        Mark("harm", name, row.harm, low, high),
        Mark("use", name, 100 * found["accuracy"], found_low, found_high, counts=has_learned),
    ]
    if row.at_t is None or row.at_8t is None or row.variance_ratio is None:
        return marks
    entropies = [statistics.fmean(cell["entropy"]) for cell in (row.at_t, row.at_8t)]
    first_weights = [100 * statistics.fmean(cell["first"]) for cell in (row.at_t, row.at_8t)]
    marks += _joined("entropy", name, *entropies)
    marks += _joined("first", name, *first_weights)
    marks.append(Mark("variance", name, row.variance_ratio, row.variance_ratio, row.variance_ratio))
    return marks


def _joined(panel: str, row: str, at_t: float, at_8t: float) -> list[Mark]:
    """Return a hollow dot at T and a filled one at 8T, with a line from one to the other."""
    low, high = sorted((at_t, at_8t))
    return [
        Mark(panel, row, at_t, at_t, at_t, counts=False),
        Mark(panel, row, at_8t, low, high),
    ]


def softmax_png() -> bytes:
    """Return the picture."""
    marks: list[Mark] = []
    for row in option_rows(FOLDER).values():
        marks += marks_of(row)
    rows = list(dict.fromkeys(mark.row for mark in marks))
    panels = [panel_chart(panel, rows, with_names=panel is PANELS[0]) for panel in PANELS]
    return png_of(alt.hconcat(*panels, data=data_of(marks), spacing=8))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="the PNG")
    parser.parse_args().out.write_bytes(softmax_png())
