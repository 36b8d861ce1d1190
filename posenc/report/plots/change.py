"""Change against the loss at T, by context: linear within the margin of `same`, logarithmic beyond it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from posenc.report.plots.ends import close
from posenc.report.plots.lines import (
    context_axis,
    draw_series,
    leftmost,
    mark_train_length,
    most_lines,
    panels,
)
from posenc.report.plots.members import per_bit
from posenc.report.plots.scale import number
from posenc.report.plots.series import (
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

LINEAR = 0.02  # of the metric, where there is no margin
MARGIN_BACK = "#E3E3E3"


def change(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """The figure; `runs` give the margin in the comparison's metric."""
    names = Names(comparisons)
    every = [series_of(one, names, change=True) for one in comparisons]
    figure, axes = panels(width, panel_titles(comparisons), most_lines(every))
    units = [per_bit(one, runs) for one in comparisons]
    linear = max(
        (unit * one.header["margins"]["same"] for unit, one in zip(units, comparisons, strict=True) if unit),
        default=LINEAR,
    )
    values = [v for series in every for one in series for v in _values(one)]
    for comparison, panel, series, unit in zip(comparisons, axes, every, units, strict=True):
        context_axis(panel, comparison.columns)
        _scale(panel, linear, values)
        panel.axhline(0, color="0.4", linewidth=0.6, zorder=0.5)
        if unit is not None:
            _margins(panel, comparison, unit)
        draw_series(panel, series)
        mark_train_length(panel)
        panel.set_xlabel("context (tokens, multiples of T)")
        if leftmost(panel):
            panel.set_ylabel(f"change against T ({comparison.header['unit']})")
    parts = [source(comparisons), "Above 0: worse than at T."]
    margins = comparisons[0].header["margins"]
    if any(units):
        parts.append(f"Grey: same, within {margins['same']:g} {margins['unit']}.")
    parts += [
        f"The scale is linear up to {number(float(f'{linear:.2g}'))}, then logarithmic.",
        band_is(comparisons, every),
    ]
    notes = [" ".join(filter(None, parts)), *names.policies, *missing(comparisons, names)]
    return close(figure, axes, every[0], legend_of(comparisons, names), notes)


def _margins(axes: Axes, comparison: Comparison, unit: float) -> None:
    margins = comparison.header["margins"]
    same, collapsed = margins["same"] * unit, margins["collapsed"] * unit
    axes.axhspan(-same, same, color=MARGIN_BACK, linewidth=0, zorder=0)
    if collapsed < axes.get_ylim()[1]:
        axes.axhline(collapsed, color="0.6", linewidth=0.6, linestyle=(0, (1, 1.5)), zorder=0.5)
        axes.annotate(
            "collapsed", (0, collapsed), xycoords=("axes fraction", "data"), xytext=(2, 1.5),
            textcoords="offset points", fontsize=7, color="0.4", va="bottom", ha="left",
        )  # fmt: skip


def _scale(axes: Axes, linear: float, values: Sequence[float]) -> None:
    axes.set_yscale("symlog", linthresh=linear, linscale=0.6)
    low, high = min([*values, -linear]), max([*values, linear])
    axes.set_ylim(-_out(-low, linear), _out(high, linear))
    steps = [base * 10.0**power for power in range(-4, 31) for base in (1, 2, 5)]
    axes.yaxis.set_major_locator(FixedLocator(_ticks(steps, linear, low, high)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: ("+" if value > 0 else "") + number(value)))


def _out(value: float, linear: float) -> float:
    """A little beyond, on the scale."""
    return value * 1.25 if value > linear else linear * 1.4


def _ticks(steps: Sequence[float], linear: float, low: float, high: float) -> list[float]:
    """0 and round numbers from the linear part's end on: all of 1, 2, 5 in few decades, tens in many."""
    decades = math.log10(max(high, -low) / linear)
    kept = [s for s in steps if s >= linear * 0.99 and (decades < 3 or f"{s:e}".startswith("1"))]
    if len(stride := [s for s in kept if s <= max(high, -low)]) > 9:
        kept = kept[:: -(-len(stride) // 9)]
    return (
        [0.0] + [s for s in kept if s <= _out(high, linear)] + [-s for s in kept if -s >= -_out(-low, linear)]
    )


def _values(one: Series) -> list[float]:
    return [value for values in (one.y, one.low, one.high) for value in values if math.isfinite(value)]
