"""Loss by position in one long context: a line for each row, a point for each bin of positions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from posenc.report.plots.context import NEAR
from posenc.report.plots.ends import close
from posenc.report.plots.lines import (
    context_axis,
    draw_series,
    leftmost,
    mark_train_length,
    most_lines,
    panels,
)
from posenc.report.plots.members import measured
from posenc.report.plots.scale import apply, split_of
from posenc.report.plots.series import (
    NAN,
    Names,
    Series,
    band_is,
    legend_of,
    missing,
    panel_titles,
    series_of,
    source,
)
from posenc.results.comparison import Comparison
from posenc.results.load import Run


def positions(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """The figure; of the runs' records with curves. Raises UserError where there is none."""
    found = measured("positions", "positions", runs, comparisons)
    names = Names(found)
    every = [series_of(one, names) for one in found]
    for series, comparison in zip(every, found, strict=True):
        if all(cell.spread is None for row in comparison.rows for cell in row.cells):
            _bands_past_t(series)
    figure, axes = panels(width, panel_titles(found), most_lines(every))
    values = [v for series in every for one in series for v in (*one.y, *one.low, *one.high)]
    split = split_of(values, [y for series in every for one in series for y in _near(one)])
    for comparison, panel, series in zip(found, axes, every, strict=True):
        context_axis(panel, comparison.columns)
        draw_series(panel, series, markers=False)
        mark_train_length(panel)
        if split is not None:
            apply(panel, split)
        panel.set_xlabel("position (tokens, multiples of T)")
        if leftmost(panel):
            panel.set_ylabel(f"loss ({comparison.header['unit']})")
    parts = [source(found), "One pass over the longest context, at the end of each bin of positions."]
    if split is not None:
        parts.append(split.words)
    rise = "of the rise over the mean from T/2 to T"
    bands = band_is(found, every).replace("of the change against T", rise)
    notes = [" ".join(filter(None, [*parts, bands])), *names.policies, *missing(found, names)]
    return close(figure, axes, every[0], legend_of(found, names), notes)


def _near(one: Series) -> list[float]:
    """The losses near that at T."""
    at = [y for x, y in zip(one.x, one.y, strict=True) if x <= 1 and math.isfinite(y)]
    return [y for y in one.y if at and y <= at[-1] * (1 + NEAR)]


def _bands_past_t(series: Sequence[Series]) -> None:
    """Intervals over documents only where there is something to judge: before T they would hide the lines."""
    for one in series:
        one.low = [NAN if x <= 1 else low for x, low in zip(one.x, one.low, strict=True)]
        one.high = [NAN if x <= 1 else high for x, high in zip(one.x, one.high, strict=True)]
