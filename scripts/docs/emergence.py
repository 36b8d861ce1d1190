"""Draw when each encoding begins to recall planted values, from the losses that its training logged.

    python scripts/docs/emergence.py docs/pictures/study/emergence.png   draw the figure from emergence.json
    python scripts/docs/emergence.py --store runs/study                  add the losses of these runs to it
    python scripts/docs/emergence.py --list                              print when each encoding recalls

docs/records/study/emergence.json has the loss on values that can be known, in nats, by encoding, seed and
tokens trained. Storing runs replaces their own rows and seeds, and keeps all others.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import numpy as np
from figures import png_of
from posenc_output import RECORDS, compare

from posenc.report.charts.looks import data_of

STORED = RECORDS / "study" / "emergence.json"
CHANCE = math.log(16)  # nats: a guess among the 16 values of the alphabet
RECALLS_BELOW = CHANCE / 2


@dataclass(frozen=True)
class Stretch:
    """The loss of a row over a stretch of its training."""

    row: str
    since: float  # millions of tokens
    tokens: float
    nats: float


Curve = list[tuple[float, float]]  # (tokens trained, nats)
CurvesBySeed = dict[str, Curve]
Curves = dict[str, CurvesBySeed]  # by encoding


def logged_curves(folder: Path) -> Curves:
    """Return the curves of the finished runs below a folder."""
    curves: Curves = {}
    for row in compare([str(folder.resolve())])["rows"]:
        for run in row["runs"]:
            seed, curve = logged_curve(Path(run))
            curves.setdefault(row["label"], {})[seed] = curve
    return curves


def logged_curve(run: Path) -> tuple[str, Curve]:
    """Return the seed and the logged losses on planted values of a run directory."""
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    curve = [(step["tokens"], round(step["recall_loss"], 3)) for step in steps if "recall_loss" in step]
    return str(results["run"]["seed"]), curve


def stored_curves() -> Curves:
    """Return what emergence.json holds."""
    curves: Curves = json.loads(STORED.read_text(encoding="utf-8"))
    return curves


def with_new_curves(stored: Curves, logged: Curves) -> Curves:
    """Return the stored curves with those of other runs added, in order of encodings and seeds."""
    merged = dict(stored)
    for row, curves in logged.items():
        merged[row] = dict(sorted({**stored.get(row, {}), **curves}.items()))
    return dict(sorted(merged.items()))


def mean_curve(curves: Mapping[str, Curve]) -> Curve:
    """Return the mean over seeds at the tokens that all seeds have logged."""
    losses_by_seed = [dict(curve) for curve in curves.values()]
    shared = set(losses_by_seed[0])
    for losses in losses_by_seed:
        shared &= set(losses)
    return [
        (tokens, float(np.mean([losses[tokens] for losses in losses_by_seed]))) for tokens in sorted(shared)
    ]


def tokens_until_recall(curve: Curve) -> float:
    """Return the tokens after which the loss is first below half of chance; infinite if it never is."""
    below = [tokens for tokens, nats in curve if nats < RECALLS_BELOW]
    return below[0] if below else math.inf


def emergence_png(curves: Curves) -> bytes:
    """Return the picture: a row for each encoding, from the first to recall to the last, coloured by loss."""
    means = {row: mean_curve(by_seed) for row, by_seed in curves.items()}

    def last_loss(row: str) -> float:
        return means[row][-1][1]

    rows = sorted(means, key=lambda row: (tokens_until_recall(means[row]), last_loss(row), row))
    logged = sorted({tokens for curve in means.values() for tokens, _ in curve})
    begin_of = dict(zip(logged, [0.0, *logged], strict=False))  # a rectangle begins where the one before ends
    stretches = [
        Stretch(row, begin_of[tokens] / 1e6, tokens / 1e6, nats)
        for row in rows
        for tokens, nats in means[row]
    ]
    legend = alt.Legend(
        title=f"nats on known values (chance {CHANCE:.2f})", orient="top", gradientLength=240, titleLimit=300
    )
    colors = alt.Scale(domain=[0, CHANCE], clamp=True, scheme="viridis", reverse=True)
    chart = (
        alt.Chart(data_of(stretches))
        .mark_rect()
        .encode(
            x=alt.X("since:Q", title="tokens trained, millions"),
            x2="tokens",
            y=alt.Y("row:N", sort=rows, title=None),
            color=alt.Color("nats:Q", scale=colors, legend=legend),
        )
        .properties(width=340, height=alt.Step(11))
    )
    return png_of(chart)


def print_list(curves: Curves) -> None:
    """Print when each encoding recalls, from the first to the last."""
    means = {row: mean_curve(by_seed) for row, by_seed in curves.items()}
    for row in sorted(means, key=lambda row: tokens_until_recall(means[row])):
        last = means[row][-1][1]
        print(
            f"{row}: {tokens_until_recall(means[row]):g} tokens, {len(curves[row])} seeds, at last {last:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="the PNG")
    parser.add_argument("--store", type=Path, metavar="RUNS", help="a folder of run directories")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    curves = stored_curves()
    if arguments.store:
        curves = with_new_curves(curves, logged_curves(arguments.store))
        STORED.write_text(json.dumps(curves, separators=(",", ":")) + "\n", encoding="utf-8")
    if arguments.list:
        print_list(curves)
    if arguments.out:
        arguments.out.write_bytes(emergence_png(curves))


if __name__ == "__main__":
    main()
