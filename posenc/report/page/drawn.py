"""Which charts a comparison gets, and the points of the training curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from posenc.report.page.charts import Axis, Chart, context_ticks
from posenc.report.page.points import Point, short
from posenc.report.plots.series import START, TYPICAL, Names, runs_of, training_series
from posenc.report.words import millions
from posenc.results.comparison import Comparison
from posenc.results.load import Run

SETTLED = 0.25  # of T; before it the loss by position falls steeply, whatever the encoding
FAR = 1.5  # times the lowest loss; what is above even at T is no part of the detail
MOST_LOGGED = 120  # points of a training curve


def context_charts(comparison: Comparison, points: Sequence[Point], data: str) -> list[Chart]:
    """Loss against context or position, and its change; none without a number."""
    if not points:
        return []
    curves, unit = any(row.curve for row in comparison.rows), comparison.header["unit"]
    multiples = [column.multiple for column in comparison.columns]
    ticks = context_ticks(multiples, [column.window for column in comparison.columns])
    title = "position: multiples of T, tokens" if curves else "context: multiples of T, tokens"
    axis = Axis(title, ticks, log=True, mark=1.0 if min(multiples) < 1 < max(multiples) else None)
    up_to_t = [point["y"] for point in points if (SETTLED if curves else 0) <= point["x"] <= 1]
    least = min(point["y"] for point in points)
    near = (least, max((y for y in up_to_t if y <= FAR * least), default=least))
    loss = "Loss by position" if curves else "Loss against context"
    charts = [Chart(loss, unit, data, axis, near=near)]
    changed = [point["d"] for point in points if "d" in point and point["x"] != 1]
    if changed:
        small = [abs(point["d"]) for point in points if "d" in point and point["x"] < 1]
        most = 2 * max(small) if small and max(small) > 0 else None
        if curves:
            most, name = 0.3, "Rise over the mean from T/2 to T"
        else:
            name = "Change against T"
        detail = (-most, most) if most else None
        charts.append(Chart(name, unit, data, axis, "d", "e", "f", zero=True, near=detail))
    return charts


def training_points(
    comparison: Comparison, runs: Sequence[Run], names: Names, numbers: dict[str, int]
) -> tuple[list[Point], list[str]]:
    """Training loss by tokens, thinned; and what there is no whole curve of, in words."""
    series, notes = training_series(comparison, runs_of(comparison, runs), names)
    points: list[Point] = []
    for one in series:
        step = max(1, math.ceil(len(one.x) / MOST_LOGGED))
        last = len(one.x) - 1
        for i in sorted({*range(0, len(one.x), step), *([last] if last >= 0 else [])}):
            spread = one.high[i] - one.y[i]
            point: Point = {"r": numbers[one.name], "x": round(one.x[i]), "y": short(one.y[i])}
            words = f"{one.y[i]:.3f}"
            if math.isfinite(spread):
                point |= {"a": short(one.low[i]), "b": short(one.high[i])}
                words += f" ± {spread:.3f}"
            points.append({**point, "t": [f"{millions(round(one.x[i]))} tokens", words]})
    return points, notes


def training_chart(points: Sequence[Point], data: str) -> Chart | None:
    """The chart of those points."""
    if not points:
        return None
    most = max(point["x"] for point in points)
    after = sorted(point["y"] for point in points if point["x"] >= START * most)
    near = (after[0], after[min(len(after) - 1, round(TYPICAL * len(after)))]) if after else None
    axis = Axis("tokens trained on")
    return Chart("Training loss", "nats per token", data, axis, near=near, start_near=True)
