"""Loss against context: a line for each row, its crop line, the trigram reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from posenc.report.plots.ends import close
from posenc.report.plots.lines import (
    context_axis,
    draw_series,
    leftmost,
    mark_train_length,
    most_lines,
    panels,
)
from posenc.report.plots.scale import apply, log_axis, split_of
from posenc.report.plots.series import (
    Names,
    Series,
    band_is,
    legend_of,
    missing,
    panel_titles,
    series_of,
    short_unit,
    source,
)
from posenc.results.comparison import Column, Comparison
from posenc.results.load import Run

NEAR = 0.12  # of its loss at T: a loss no further above it has not collapsed, and gets the fine scale
CROP: dict[str, Any] = {"linewidth": 0.5, "alpha": 0.7}  # no dashes: rows have those
STUB = 2**0.12  # times a single context to either side, of a crop line
CROPS = 8  # lines, above which crop lines would be a hatching


def context(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """The figure; from the comparisons alone."""
    names = Names(comparisons)
    return over_context(comparisons, names, panel_titles(comparisons), width, share=True)


def over_context(
    comparisons: Sequence[Comparison], names: Names, titles: Sequence[str], width: float, share: bool
) -> Figure:
    """Panels of loss against context, on one vertical scale if `share`."""
    every = [series_of(one, names) for one in comparisons]
    figure, grid = panels(width, titles, most_lines(every), share)
    notes = [source(comparisons)]
    log = comparisons[0].header["metric"] == "ppl"
    crops = False
    for comparison, axes, series in zip(comparisons, grid, every, strict=True):
        unit, more = short_unit(comparison)
        notes += [more] if more and more not in notes else []
        context_axis(axes, comparison.columns)
        draw_series(axes, series)
        few = sum(one.drawn for one in series) <= CROPS
        ends = _crop_ends(comparison.columns)
        for one in series if few else ():
            if one.crop is not None and one.drawn and ends is not None:
                crops = True
                axes.plot(ends, [one.crop] * 2, zorder=1, color=one.style.color, **CROP)
        reference = comparison.header["reference"]
        if reference is not None and reference["mean"] is not None:
            axes.axhline(reference["mean"], color="0.55", linewidth=0.6, zorder=1)
            axes.annotate(
                "trigram", (0, reference["mean"]), xycoords=("axes fraction", "data"), xytext=(2, 1.5),
                textcoords="offset points", fontsize=7, color="0.4", va="bottom", ha="left",
            )  # fmt: skip
        mark_train_length(axes)
        axes.set_xlabel("context (tokens, multiples of T)")
        if leftmost(axes) or not share:
            axes.set_ylabel(comparison.header["unit"] if log else f"loss ({unit})")
        scaled = every if share else [series]
        references = [reference["mean"]] if reference is not None and reference["mean"] is not None else []
        if log:
            log_axis(axes)
        elif split := split_of(
            [y for s in scaled for one in s for y in _ends(one)] + references, _near(scaled)
        ):
            apply(axes, split)
            text = split.words
            notes += [] if text in notes else [text]
    notes += ["Thin and level: the crop line, the loss at T of the same row."] if crops else []
    notes = [" ".join(filter(None, [*notes, band_is(comparisons, every)])), *names.policies]
    return close(
        figure, grid, every[0], legend_of(comparisons, names), [*notes, *missing(comparisons, names)]
    )


def _crop_ends(columns: Sequence[Column]) -> tuple[float, float] | None:
    """From T, or the shortest context shown, to the longest; about a single one. None up to T."""
    if not columns or columns[-1].multiple <= 1:
        return None
    low, high = max(1.0, columns[0].multiple), columns[-1].multiple
    return (low, high) if low < high else (low / STUB, high * STUB)


def _near(every: Sequence[Sequence[Series]]) -> list[float]:
    """The losses at T, and those that are near that of their row."""
    rows = [one for series in every for one in series if one.crop is not None]
    return [one.crop or 0.0 for one in rows] + [
        y for one in rows for y in one.y if y <= (one.crop or 0.0) * (1 + NEAR)
    ]


def _ends(one: Series) -> list[float]:
    return [value for values in (one.y, one.low, one.high) for value in values]
