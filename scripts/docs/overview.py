"""Draw every encoding of the study in one figure: loss at T, harm, use and room.

    python scripts/docs/overview.py
Rows go from the least harm to the most. Loss, harm and use are those of docs/records/study-recall. Room is
that of docs/records/study-room: trained at 8T (filled), and what a model trained at T gains, if it keeps
its loss (hollow).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import vl_convert

from posenc.report.captions import label
from posenc.report.charts import SIGNED, image, on_paper, template
from posenc.results import load_runs
from posenc.results.comparison import CompareRequest, compare_runs
from posenc.results.rows import Row

DOCS = Path(__file__).parents[2] / "docs"
FIGURE = DOCS / "pictures" / "study" / "overview.png"
STEP, COLOR = 10.5, "#2a78d6"  # points a row
Value = dict[str, Any]
PANELS: dict[str, Value] = {
    "loss": {"title": "loss at T, nats", "scale": {"zero": False}, "width": 62},
    "harm": {
        "title": "harm: change at 8T, nats",
        "scale": {"type": "symlog", "constant": 0.02, "domain": [-0.02, 2]},
        "axis": {"values": [0, 0.05, 0.5], **SIGNED},
        "width": 88,
    },
    "use": {"title": "use: found at 8T, %", "scale": {"domain": [0, 100]}, "width": 68},
    "room": {
        "title": "room at 8T, nats",
        "scale": {"domain": [-0.31, 0.25]},
        "axis": {"values": [-0.2, 0, 0.2], **SIGNED},
        "width": 68,
    },
}


def rows_of(name: str) -> list[Row]:
    return compare_runs(load_runs([DOCS / "records" / name]), CompareRequest())[0].rows


def values() -> list[Value]:
    """Return a mark for each row and panel: its middle `x`, its interval, whether it counts."""
    found: list[Value] = []

    def mark(
        panel: str, row: Row, x: float, ends: Iterable[float] | None = None, counts: bool = True
    ) -> None:
        low, high = ends or (x, x)
        found.append({"panel": panel, "row": label(row), "x": x, "low": low, "high": high, "counts": counts})

    for row in sorted(rows_of("study-recall"), key=lambda row: row.cells[-1].change or 0.0):
        far, change, recall = row.cells[-1], row.cells[-1].change, row.recall
        last = recall.beyond[-1] if recall else None
        assert recall and last and change is not None
        mark("loss", row, next(cell.mean or 0.0 for cell in row.cells if cell.multiple == 1))
        mark("harm", row, change, far.change_ci95 or [change + s * (far.change_spread or 0) for s in (-1, 1)])
        mark("use", row, 100 * last.accuracy, [100 * end for end in last.ci95], bool(recall.learned))
    for row in rows_of("study-room"):
        if room := row.recovered:
            mark("room", row, room.room, room.room_ci95)
            if row.cells[-1].verdict == "same":
                mark("room", row, (room.share or 0.0) * room.room, counts=False)
    return found


def panel(name: str, rows: list[str], first: bool) -> Value:
    """Return one of the panels: intervals as lines, the values as dots, hollow where they do not count."""
    how: Value = dict(PANELS[name])
    width = how.pop("width")
    x: Value = {"field": "x", "type": "quantitative", **how}
    x["axis"] = {"tickCount": 4, "grid": False, "titlePadding": 3, **how.get("axis", {})}
    y: Value = {"field": "row", "type": "nominal", "sort": rows, "scale": {"domain": rows}, "title": None}
    y["axis"] = {"grid": True, "ticks": False, "labels": first}
    line: Value = {"type": "rule", "strokeWidth": 1, "stroke": "var(--ink)"}
    dot = {"type": "point", "size": 18, "strokeWidth": 0.8, "opacity": 1, "filled": True, "stroke": COLOR}
    fill = {"condition": {"test": "datum.counts", "value": COLOR}, "value": "white"}
    ends = {"y": y, "x": x | {"field": "low"}, "x2": {"field": "high"}}
    zero = {
        "mark": line | {"strokeWidth": 0.6, "strokeDash": [2, 2], "opacity": 0.6},
        "encoding": {"x": {key: one for key, one in x.items() if key != "field"} | {"datum": 0}},
    }
    return {
        "width": width,
        "height": {"step": STEP},
        "transform": [{"filter": {"field": "panel", "equal": name}}],
        "layer": [
            *[zero] * (name in ("harm", "room")),
            {"mark": line, "encoding": ends},
            {"mark": dot, "encoding": {"x": x, "y": y, "fill": fill}},
        ],
    }


def drawn() -> bytes:
    """Return the PNG."""
    found = values()
    rows = list(dict.fromkeys(one["row"] for one in found))
    spec = {key: one for key, one in template("lines").items() if key in ("$schema", "config")} | {
        "data": {"values": found},
        "hconcat": [panel(name, rows, not i) for i, name in enumerate(PANELS)],
        "spacing": 8,
    }
    return image(vl_convert.vegalite_to_svg(on_paper(spec, {}), allowed_base_urls=[]), "png")


if __name__ == "__main__":
    FIGURE.write_bytes(drawn())
