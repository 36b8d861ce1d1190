"""Draw when each encoding begins to recall planted values, from the losses that its training logged.

    python scripts/docs/emergence.py runs/study --store         keep the losses of run directories in the JSON
    python scripts/docs/emergence.py                            draw the figure from the JSON
The JSON has the loss on values that can be known, in nats, by row, seed and tokens trained. What it held of
other rows and seeds stays.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import vl_convert

from posenc.report.charts import image, on_paper
from posenc.results.load import load_runs
from posenc.results.rows import as_trained

DOCS = Path(__file__).parents[2] / "docs"
STORED, FIGURE = DOCS / "records" / "study" / "emergence.json", DOCS / "pictures" / "study" / "emergence.png"
CHANCE = math.log(16)  # nats: one of the alphabet's 16 values
Curves = dict[str, dict[str, list[tuple[float, float]]]]


def logged(folder: Path) -> Curves:
    """Return {row: {seed: [[tokens, nats], ...]}} of the finished runs below a folder."""
    found: Curves = {}
    for run in load_runs([folder]):
        if run.state == "finished" and run.config is not None:
            text = (run.path / "metrics.jsonl").read_text(encoding="utf-8")
            lines = [json.loads(line) for line in text.splitlines()]
            curve = [(one["tokens"], round(one["recall_loss"], 3)) for one in lines if "recall_loss" in one]
            found.setdefault(as_trained(run.config), {})[str(run.seed)] = curve
    return found


def emerged(curves: dict[str, list[tuple[float, float]]]) -> float:
    """Return the tokens after which the mean over seeds is below half of chance, infinite if it never is."""
    below = [tokens for tokens, nats in mean(curves) if nats < CHANCE / 2]
    return below[0] if below else math.inf


def mean(curves: dict[str, list[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Return (tokens, mean loss over seeds), where all seeds have logged."""
    seeds = [dict(curve) for curve in curves.values()]
    shared = sorted(set.intersection(*map(set, seeds)))
    return [(tokens, float(np.mean([one[tokens] for one in seeds]))) for tokens in shared]


def drawn(found: Curves) -> bytes:
    """Return the PNG: a row for each encoding, from the first to recall to the last; colour is the loss."""
    rows = sorted(found, key=lambda row: (emerged(found[row]), mean(found[row])[-1][1], row))
    at = sorted({tokens for row in rows for tokens, _ in mean(found[row])})
    since = dict(zip(at, [0.0, *at], strict=False))
    values = [
        {"row": row, "since": since[tokens] / 1e6, "tokens": tokens / 1e6, "nats": nats}
        for row in rows
        for tokens, nats in mean(found[row])
    ]
    color = {
        "field": "nats",
        "type": "quantitative",
        "scale": {"domain": [0, CHANCE], "clamp": True, "scheme": "viridis", "reverse": True},
        "title": f"nats on known values (chance {CHANCE:.2f})",
        "legend": {"orient": "top", "gradientLength": 240, "titleLimit": 300},
    }
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "config": {},
        "data": {"values": values},
        "width": 340,
        "height": {"step": 11},
        "mark": "rect",
        "encoding": {
            "x": {"field": "since", "type": "quantitative", "title": "tokens trained, millions"},
            "x2": {"field": "tokens"},
            "y": {"field": "row", "type": "nominal", "sort": rows, "title": None},
            "color": color,
        },
    }
    return image(vl_convert.vegalite_to_svg(on_paper(spec, {}), allowed_base_urls=[]), "png")


def stored() -> Curves:
    """Return what the JSON holds."""
    found: Curves = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--store", action="store_true")
    asked = parser.parse_args()
    found = stored()
    for row, curves in (logged(asked.folder) if asked.folder else {}).items():
        found[row] = dict(sorted((found.get(row, {}) | curves).items()))
    if asked.store:
        STORED.write_text(json.dumps(dict(sorted(found.items())), separators=(",", ":")) + "\n")
    FIGURE.write_bytes(drawn(found))
    for row in sorted(found, key=lambda row: emerged(found[row])):
        nats = mean(found[row])[-1][1]
        print(f"{row}: {emerged(found[row]):g} tokens, {len(found[row])} seeds, at last {nats:.3f}")


if __name__ == "__main__":
    main()
