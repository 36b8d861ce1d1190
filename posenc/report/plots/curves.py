"""Plot lines of results: loss and change against context, loss by position, probes, training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from posenc.core.errors import UserError
from posenc.report.captions import millions
from posenc.report.plots.canvas import (
    NAME_STEP,
    TICKS,
    End,
    finish,
    finish_with_names,
    line_look,
    log_ticks,
    mark_x,
    mark_y,
    marker_look,
    number,
    sheet,
    split_axis,
    split_of,
    symlog_axis,
)
from posenc.report.plots.series import (
    START,
    TYPICAL,
    Names,
    Series,
    band_is,
    has_bands,
    measured,
    missing,
    panel_titles,
    per_bit,
    runs_of,
    series_of,
    short_unit,
    source,
    training_series,
)
from posenc.results.cells import PROBES
from posenc.results.comparison import Column, Comparison
from posenc.results.load import Run

HEIGHT = 2.6  # inches, of a row of panels
TALLEST = 5.5  # inches, of a panel that grows with its lines, so that their names fit beside it
LOWER = 2.0  # inches, of a row where there are several
NARROWEST = 2.0  # inches, of a panel
BAND, BAR = 0.16, 0.6  # opacity
NEAR = 0.12  # of its loss at T: a loss no further above it has not collapsed, and gets the fine scale
LINEAR = 0.02  # of the metric, where there is no margin
CROPS = 8  # lines, above which crop lines would be a hatching
STUB = 2**0.12  # times a single context to either side, of a crop line
CONTEXT = "context (tokens, multiples of T)"
POSITION = "position (tokens, multiples of T)"

Every = Sequence[Sequence[Series]]  # lines by panel


def context(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """Plot loss against context: a line for each row, its crop line, the trigram reference."""
    names = Names(comparisons)
    every = [series_of(one, names) for one in comparisons]
    return _losses(comparisons, panel_titles(comparisons), every, width, CONTEXT)


def probes(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """Plot induction and far-copy, which the loss on text cannot tell; a panel for each and comparison."""
    there = {
        record["protocol"] for one in comparisons for run in runs_of(one, runs) for record in run.records
    }
    if not there & {*PROBES}:
        hint = f"measure them: posenc eval run=DIR 'eval.protocols=[{','.join(PROBES)}]'"
        raise UserError("--plot-kind", "probes", "no run has measured a probe", hint=hint)
    found: list[Comparison] = []
    titles: list[str] = []
    for name in PROBES:
        if name in there:
            of_probe = measured("probes", name, runs, comparisons)
            found += of_probe
            titles += [", ".join(filter(None, [name, title])) for title in panel_titles(of_probe)]
    names = Names(found)
    return _losses(found, titles, [series_of(one, names) for one in found], width, CONTEXT, share=False)


def positions(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """Plot loss by position in one long context: a line for each row, a point for each bin of positions."""
    found = measured("positions", "positions", runs, comparisons)
    names = Names(found)
    every = [series_of(one, names) for one in found]
    for series, comparison in zip(every, found, strict=True):
        if all(cell.spread is None for row in comparison.rows for cell in row.cells):
            for one in series:  # up to T intervals over documents would only hide the lines
                early = sum(x <= 1 for x in one.x)
                one.low[:early] = one.high[:early] = [math.nan] * early
    return _losses(found, panel_titles(found), every, width, POSITION)


def _losses(
    comparisons: Sequence[Comparison],
    titles: Sequence[str],
    every: Every,
    width: float,
    x_label: str,
    share: bool = True,
) -> Figure:
    """Draw panels of loss against multiples of T, on one vertical scale if `share`."""
    names = Names(comparisons)
    figure, grid = _panels(width, titles, every, share)
    notes = [source(comparisons)]
    by_position = x_label == POSITION
    if by_position:
        notes.append("One pass over the longest context, at the end of each bin of positions.")
    for comparison, axes, series in zip(comparisons, grid, every, strict=True):
        unit, more = short_unit(comparison)
        perplexity = comparison.header["metric"] == "ppl"
        reference = (comparison.header["reference"] or {}).get("mean")
        _context_axis(axes, comparison.columns)
        _draw(axes, series, markers=not by_position)
        crops = not by_position and _crop_lines(axes, series, comparison.columns)
        if reference is not None:
            mark_y(axes, "trigram", reference)
        mark_x(axes, {"T": 1.0}, linestyle=(0, (1, 2)))
        axes.set_xlabel(x_label)
        if _leftmost(axes) or not share:
            axes.set_ylabel(comparison.header["unit"] if perplexity else f"loss ({unit})")
        scaled = [one for some in (every if share else [series]) for one in some]
        values = [value for one in scaled for value in one.values()]
        split = split_of([*values, *([] if reference is None else [reference])], _near(scaled))
        if perplexity:
            axes.set_yscale("log")
            log_ticks(axes.yaxis, number, 300)
            axes.yaxis.set_minor_locator(NullLocator())
        elif split is not None:
            split_axis(axes, split)
        notes += [more, "" if split is None or perplexity else split.words]
        notes += ["Thin and level: the crop line, the loss at T of the same row."] if crops else []
    bands = band_is(comparisons, every)
    if by_position:
        bands = bands.replace("of the change against T", "of the rise over the mean from T/2 to T")
    text = " ".join(filter(None, dict.fromkeys([*notes, bands])))
    return _close(figure, grid, every, [text, *names.policies, *missing(comparisons, names)])


def _near(series: Sequence[Series]) -> list[float]:
    """Return the losses at T, and those that are near that of their row."""
    found = []
    for one in series:
        up_to_t = [y for x, y in zip(one.x, one.y, strict=True) if x <= 1 and math.isfinite(y)]
        level = one.crop if one.crop is not None else up_to_t[-1] if up_to_t else None
        if level is not None:
            found += [level, *(y for y in one.y if y <= level * (1 + NEAR))]
    return found


def _crop_lines(axes: Axes, series: Sequence[Series], columns: Sequence[Column]) -> bool:
    """Draw the loss at T level from there to the longest context; False where it has no room or sense."""
    crops = [(one, one.crop) for one in series if one.crop is not None and one.drawn]
    if not crops or columns[-1].multiple <= 1 or sum(one.drawn for one in series) > CROPS:
        return False
    low, high = max(1.0, columns[0].multiple), columns[-1].multiple
    ends = (low, high) if low < high else (low / STUB, high * STUB)
    for one, loss in crops:  # no dashes: rows have those
        axes.plot(ends, (loss, loss), zorder=1, color=one.style.color, linewidth=0.5, alpha=0.7)
    return True


def change(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """Plot the change against the loss at T: linear within the margin of `same`, logarithmic beyond it."""
    names = Names(comparisons)
    every = [series_of(one, names, change=True) for one in comparisons]
    figure, grid = _panels(width, panel_titles(comparisons), every)
    margins = comparisons[0].header["margins"]
    units = [per_bit(one, runs) for one in comparisons]
    linear = max((unit * margins["same"] for unit in units if unit), default=LINEAR)
    values = [value for series in every for one in series for value in one.values()]
    for comparison, axes, series, unit in zip(comparisons, grid, every, units, strict=True):
        _context_axis(axes, comparison.columns)
        symlog_axis(axes, linear, values)
        axes.axhline(0, color="0.4", linewidth=0.6, zorder=0.5)
        if unit is not None:
            same = margins["same"] * unit
            axes.axhspan(-same, same, color="#E3E3E3", linewidth=0, zorder=0)
            if margins["collapsed"] * unit < axes.get_ylim()[1]:
                mark_y(axes, "collapsed", margins["collapsed"] * unit, linestyle=(0, (1, 1.5)))
        _draw(axes, series)
        mark_x(axes, {"T": 1.0}, linestyle=(0, (1, 2)))
        axes.set_xlabel(CONTEXT)
        if _leftmost(axes):
            axes.set_ylabel(f"change against T ({comparison.header['unit']})")
    notes = [source(comparisons), "Above 0: worse than at T."]
    if any(units):
        notes.append(f"Grey: same, within {margins['same']:g} {margins['unit']}.")
    notes.append(f"The scale is linear up to {number(float(f'{linear:.2g}'))}, then logarithmic.")
    text = " ".join(filter(None, [*notes, band_is(comparisons, every)]))
    return _close(figure, grid, every, [text, *names.policies, *missing(comparisons, names)])


def training(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """Plot training loss against tokens: the mean over seeds of what the runs logged, lightly smoothed."""
    names = Names(comparisons)
    found = [training_series(one, runs_of(one, runs), names) for one in comparisons]
    every = [series for series, _ in found]
    lines = [one for series in every for one in series if one.drawn]
    if not lines:
        raise UserError("--plot-kind", "training", "no run has logged losses")
    figure, grid = _panels(width, panel_titles(comparisons), every)
    settled = sorted(value for one in lines for value in one.values(START * one.x[-1]))
    split = split_of(settled, settled[: max(1, round(TYPICAL * len(settled)))])
    room = 0.05 * (settled[-1] - settled[0]) or 0.5
    for axes, series in zip(grid, every, strict=True):
        _draw(axes, series, markers=False)
        if split is not None:
            split_axis(axes, split)
        else:
            axes.set_ylim(settled[0] - room, settled[-1] + room)
        axes.set_xlim(0, max(one.x[-1] for one in lines) * 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: millions(round(value))))
        axes.set_xlabel("tokens trained on")
        if _leftmost(axes):
            axes.set_ylabel("training loss (nats per token)")
    notes = [source(comparisons, skip=["protocol", "stride"]), "A point is the mean of 5 logged steps."]
    notes.append("" if split is None else split.words)
    if any(math.isfinite(low) for series in every if has_bands(series) for one in series for low in one.low):
        notes.append("Bands: standard deviation over seeds, as far as all of them have trained.")
    words = [note for _, some in found for note in some]
    return _close(figure, grid, every, [" ".join(filter(None, notes)), *words])


# Panels of lines


def _panels(
    width: float, titles: Sequence[str], every: Every, share: bool = True
) -> tuple[Figure, list[Axes]]:
    """Make axes for each title, in as many columns as the width has room for; a single one grows."""
    columns = max(1, min(len(titles), int(width / NARROWEST)))
    rows = -(-len(titles) // columns)
    tall = TICKS + NAME_STEP * (max((sum(one.drawn for one in series) for series in every), default=0) + 1)
    height = HEIGHT if len(titles) > 1 or tall > TALLEST else max(HEIGHT, tall)
    figure = sheet(width, height if rows == 1 else LOWER * rows)
    flat = list(figure.subplots(rows, columns, squeeze=False, sharey=share).flat)
    for spare in flat[len(titles) :]:
        figure.delaxes(spare)
    for axes, title in zip(flat, titles, strict=False):
        axes.set_title(title).set_in_layout(False)
        axes.tick_params(length=2.5, width=0.6, pad=2)
    return figure, flat[: len(titles)]


def _leftmost(axes: Axes) -> bool:
    place = axes.get_subplotspec()
    return place is None or place.is_first_col()


def _draw(axes: Axes, series: Sequence[Series], markers: bool = True) -> None:
    """Draw lines with their bands; those that come first lie on top."""
    for i, one in enumerate(series):
        if not one.drawn:
            continue
        over = 3 - i / len(series)
        single = sum(map(math.isfinite, one.y)) == 1  # no line: a marker, and a bar for the band
        look = {**line_look(one.style), **(marker_look(one.style) if markers or single else {})}
        axes.plot(one.x, one.y, zorder=over, label=one.name, **look)
        if has_bands(series) and any(map(math.isfinite, one.low)):
            band: dict[str, Any] = {"color": one.style.color, "zorder": over - 1.5}
            if single:
                axes.vlines(one.x, one.low, one.high, alpha=BAR, linewidth=1, **band)
            else:
                axes.fill_between(one.x, one.low, one.high, alpha=BAND, linewidth=0, **band)


def _close(figure: Figure, grid: Sequence[Axes], every: Every, notes: Sequence[str]) -> Figure:
    """Finish with the names of lines: beside their ends where one panel has room, else in a legend."""
    ends = []
    for one in every[0] if len(grid) == 1 else ():
        points = [(x, y) for x, y in zip(one.x, one.y, strict=True) if math.isfinite(y)]
        ends += [End(one.name, one.style, *points[-1])] if points else []
    if not finish_with_names(figure, grid[0], ends, notes):
        legend = {one.name: (one.name, one.style) for series in every for one in series if one.drawn}
        finish(figure, list(legend.values()), notes)
    return figure


def tokens(count: object) -> str:
    """Write 64, 2048, 16k: exact where it is short."""
    short = isinstance(count, int) and count >= 10_000 and count % 1024 == 0
    return f"{count // 1024}k" if short and isinstance(count, int) else str(count)


def _context_axis(axes: Axes, columns: Sequence[Column]) -> None:
    """Make x logarithmic in multiples of T, with a tick for each column that there is room for."""
    place = axes.get_subplotspec()
    side_by_side = 1 if place is None else int(place.get_gridspec().ncols)
    inches = 0.7 * axes.figure.bbox.width / axes.figure.dpi / side_by_side
    shown = _with_room(columns, inches / 0.36)
    names = []
    for column in shown:
        multiple = f"{number(column.multiple)}x"
        window = [] if column.window is None else [tokens(column.window)]
        names.append("\n".join([*window, *([multiple] if not window or column.multiple >= 0.25 else [])]))
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator([column.multiple for column in shown]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FixedFormatter(names))
    if columns:
        low, high = columns[0].multiple, columns[-1].multiple
        room = (high / low) ** 0.04 if high > low else 2**0.5
        axes.set_xlim(low / room, high * room)


def _with_room(columns: Sequence[Column], most: float) -> list[Column]:
    """Keep the columns that can be named without touching: T, then the ends, then whole powers of two."""
    if len(columns) < 2:
        return list(columns)
    whole = [one for one in columns if math.log2(one.multiple).is_integer()]
    first = [one for one in columns if one.multiple == 1.0] + [columns[-1], columns[0]]
    least = math.log2(columns[-1].multiple / columns[0].multiple) / max(most, 1.0) * 0.999
    kept: list[Column] = []
    for one in [*first, *whole, *(columns if len(whole) < 4 else [])]:
        if all(abs(math.log2(one.multiple / other.multiple)) >= least for other in kept):
            kept.append(one)
    return sorted(kept, key=lambda one: one.multiple)
