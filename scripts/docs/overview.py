"""Draw every encoding of the study in one figure: loss at T, harm, use and room.

    python scripts/docs/overview.py docs/pictures/study/overview.png

Rows go from the least harm to the most. Loss, harm and use are those of docs/records/study-recall; use is
hollow where the model did not learn to recall. Room is that of docs/records/study-room: filled is what models
trained at 8T gain there, hollow is what models trained at T gain, drawn if they keep their loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from figures import Spec, png_of
from posenc_output import Json, cell_at, compare, last_cell, verdict_word

from posenc.report.chart import SIGNED_LABELS

ROW_HEIGHT = 10.5  # points
COLOR = "#2a78d6"


@dataclass(frozen=True)
class Mark:
    """A dot with its interval in one panel."""

    panel: str
    row: str
    x: float
    low: float
    high: float
    counts: bool = True  # a dot that does not count is hollow


@dataclass(frozen=True)
class Panel:
    """One of the figure's columns."""

    name: str
    title: str
    width: int  # points
    scale: Spec
    axis: Spec
    has_zero_line: bool


PANELS = (
    Panel(
        name="loss",
        title="loss at T, nats",
        width=62,
        scale={"zero": False},
        axis={},
        has_zero_line=False,
    ),
    Panel(
        name="harm",
        title="harm: change at 8T, nats",
        width=88,
        scale={"type": "symlog", "constant": 0.02, "domain": [-0.02, 2]},
        axis={"values": [0, 0.05, 0.5], **SIGNED_LABELS},
        has_zero_line=True,
    ),
    Panel(
        name="use",
        title="use: found at 8T, %",
        width=68,
        scale={"domain": [0, 100]},
        axis={},
        has_zero_line=False,
    ),
    Panel(
        name="room",
        title="room at 8T, nats",
        width=68,
        scale={"domain": [-0.31, 0.25]},
        axis={"values": [-0.2, 0, 0.2], **SIGNED_LABELS},
        has_zero_line=True,
    ),
)


def study_marks() -> list[Mark]:
    """Return loss, harm and use of every encoding, from the least harm to the most."""
    rows = compare(["study-recall"])["rows"]
    marks = []
    for row in sorted(rows, key=lambda row: last_cell(row)["change"]):
        name, change = row["label"], last_cell(row)["change"]
        loss = cell_at(row, 1)["mean"]
        found = row["recall"]["beyond"][-1]
        low, high = harm_interval(last_cell(row))
        marks += [
            Mark("loss", name, loss, loss, loss),
            Mark("harm", name, change, low, high),
            Mark(
                "use",
                name,
                100 * found["accuracy"],
                *(100 * end for end in found["ci95"]),
                counts=bool(row["recall"]["learned"]),
            ),
        ]
    return marks


def harm_interval(cell: Json) -> tuple[float, float]:
    """Return the 95% interval over documents of one seed, else a standard deviation over seeds each way."""
    if cell["change_ci95"] is not None:
        low, high = cell["change_ci95"]
        return low, high
    spread = cell["change_spread"] or 0
    return cell["change"] - spread, cell["change"] + spread


def room_marks() -> list[Mark]:
    """Return what training at 8T gains, and what of it a model trained at T gains if it keeps its loss."""
    marks = []
    for row in compare(["study-room"])["rows"]:
        recovered = row["recovered"]
        if recovered is None:
            continue
        room, (low, high) = recovered["room"], recovered["room_ci95"]
        marks.append(Mark("room", row["label"], room, low, high))
        if verdict_word(last_cell(row)) == "same":
            gain = (recovered["share"] or 0.0) * room
            marks.append(Mark("room", row["label"], gain, gain, gain, counts=False))
    return marks


def panel_spec(panel: Panel, rows: Sequence[str], with_names: bool) -> Spec:
    """Return the chart of a panel: intervals as lines under dots."""
    x = {
        "type": "quantitative",
        "title": panel.title,
        "scale": panel.scale,
        "axis": {"tickCount": 4, "grid": False, "titlePadding": 3, **panel.axis},
    }
    y = {
        "field": "row",
        "type": "nominal",
        "sort": rows,
        "scale": {"domain": rows},
        "title": None,
        "axis": {"grid": True, "ticks": False, "labels": with_names},
    }
    line = {"type": "rule", "strokeWidth": 1, "stroke": "var(--ink)"}
    dot = {"type": "point", "size": 18, "strokeWidth": 0.8, "opacity": 1, "filled": True, "stroke": COLOR}
    fill = {"condition": {"test": "datum.counts", "value": COLOR}, "value": "white"}
    intervals = {"mark": line, "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}}}
    dots = {"mark": dot, "encoding": {"x": {**x, "field": "x"}, "y": y, "fill": fill}}
    zero_mark = {**line, "strokeWidth": 0.6, "strokeDash": [2, 2], "opacity": 0.6}
    zero = {"mark": zero_mark, "encoding": {"x": {**x, "datum": 0}}}
    return {
        "width": panel.width,
        "height": {"step": ROW_HEIGHT},
        "transform": [{"filter": {"field": "panel", "equal": panel.name}}],
        "layer": [zero, intervals, dots] if panel.has_zero_line else [intervals, dots],
    }


def overview_png() -> bytes:
    """Return the picture."""
    marks = [*study_marks(), *room_marks()]
    rows = list(dict.fromkeys(mark.row for mark in marks))
    first, *more = PANELS
    panels = [panel_spec(first, rows, with_names=True)]
    panels += [panel_spec(panel, rows, with_names=False) for panel in more]
    values = [asdict(mark) for mark in marks]
    return png_of({"data": {"values": values}, "hconcat": panels, "spacing": 8})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="the PNG")
    parser.parse_args().out.write_bytes(overview_png())
