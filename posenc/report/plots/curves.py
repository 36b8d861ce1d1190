"""Plot lines of results: loss and change against context, loss by position, probes, training."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator, SymmetricalLogLocator

from posenc.core.errors import UserError
from posenc.report.captions import millions, unit_of
from posenc.report.colors import Style
from posenc.report.plots.canvas import (
    DOTTED,
    finish,
    line_look,
    log_ticks,
    mark_x,
    mark_y,
    marker_look,
    number,
    sheet,
)
from posenc.report.plots.series import (
    SMOOTHED,
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
    source,
    training_series,
)
from posenc.results.cells import PROBES
from posenc.results.comparison import Column, Comparison
from posenc.results.load import Run

HEIGHT = 2.6  # inches, of a row of panels
LOWER = 2.0  # inches, of a row where there are several
NARROWEST = 2.0  # inches, of a panel
LINEAR = 0.02  # of the metric, where there is no margin
START = 0.05  # of a run's tokens: a loss higher than all that follows may leave the axes at the top
CONTEXT = "context (tokens, multiples of T)"
POSITION = "position (tokens, multiples of T)"

Every = Sequence[Sequence[Series]]  # lines by panel


def context(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """Plot loss against context: a line for each row, the trigram reference."""
    return _losses(comparisons, panel_titles(comparisons), width, CONTEXT)


def probes(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """Plot induction and far-copy, which the loss on text cannot tell; a panel for each and comparison."""
    there = {record["protocol"] for run in runs for record in run.records}
    found: list[Comparison] = []
    titles: list[str] = []
    for name in [name for name in PROBES if name in there]:
        of_probe = measured("probes", name, runs, comparisons)
        found += of_probe
        titles += [", ".join(filter(None, [name, title])) for title in panel_titles(of_probe)]
    if not found:
        hint = f"measure them: posenc eval run=DIR 'eval.protocols=[{','.join(PROBES)}]'"
        raise UserError("--plot-kind", "probes", "no run has measured a probe", hint=hint)
    return _losses(found, titles, width, CONTEXT, share=False)


def positions(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """Plot loss by position in one long context: a line for each row, a point for each bin of positions."""
    found = measured("positions", "positions", runs, comparisons)
    return _losses(found, panel_titles(found), width, POSITION)


def _losses(
    comparisons: Sequence[Comparison], titles: Sequence[str], width: float, x_label: str, share: bool = True
) -> Figure:
    """Draw panels of loss against multiples of T, on one vertical scale if `share`."""
    names = Names(comparisons)
    every = [series_of(one, names) for one in comparisons]
    figure, grid = _panels(width, titles, share)
    for comparison, axes, series in zip(comparisons, grid, every, strict=True):
        h = comparison.header
        reference = (h["reference"] or {}).get("mean")
        _context_axis(axes, comparison.columns)
        _draw(axes, series, markers=x_label == CONTEXT)
        if reference is not None:
            mark_y(axes, "trigram", reference)
        mark_x(axes, {"T": 1.0}, linestyle=DOTTED)
        axes.set_xlabel(x_label)
        if _cell(axes).is_first_col() or not share:
            axes.set_ylabel(unit_of(h) if h["metric"] == "ppl" else f"loss ({unit_of(h)})")
        if h["metric"] == "ppl":
            axes.set_yscale("log")
            log_ticks(axes.yaxis, number)
    _finish(figure, comparisons, every, names, [])
    return figure


def _finish(
    figure: Figure, comparisons: Sequence[Comparison], every: Every, names: Names, words: Sequence[str]
) -> None:
    bands = band_is(comparisons) if all(map(has_bands, every)) else "Without bands: too many lines."
    text = " ".join(filter(None, [source(comparisons), *words, bands]))
    finish(figure, _legend(every), [text, *missing(comparisons, names)])


def change(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """Plot the change against the loss at T: linear within the margin of `same`, logarithmic beyond it."""
    names = Names(comparisons)
    every = [series_of(one, names, change=True) for one in comparisons]
    figure, grid = _panels(width, panel_titles(comparisons))
    margins = comparisons[0].header["margins"]
    units = [per_bit(one, runs) for one in comparisons]
    linear = max((unit * margins["same"] for unit in units if unit), default=LINEAR)
    values = [value for series in every for one in series for value in one.values()]
    for comparison, axes, series, unit in zip(comparisons, grid, every, units, strict=True):
        _context_axis(axes, comparison.columns)
        _symlog_axis(axes, linear, values)
        axes.axhline(0, color="0.4", linewidth=0.6, zorder=0.5)
        if unit is not None:
            same = margins["same"] * unit
            axes.axhspan(-same, same, color="#E3E3E3", linewidth=0, zorder=0)
            if margins["collapsed"] * unit < axes.get_ylim()[1]:
                mark_y(axes, "collapsed", margins["collapsed"] * unit, linestyle=DOTTED)
        _draw(axes, series)
        mark_x(axes, {"T": 1.0}, linestyle=DOTTED)
        axes.set_xlabel(CONTEXT)
        if _cell(axes).is_first_col():
            axes.set_ylabel(f"change against T ({unit_of(comparison.header)})")
    notes = ["Above 0: worse than at T."]
    if any(units):
        notes.append(f"Grey: same, within {margins['same']:g} {margins['unit']}.")
    notes.append(f"The scale is linear up to {number(float(f'{linear:.2g}'))}, then logarithmic.")
    _finish(figure, comparisons, every, names, notes)
    return figure


def training(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """Plot training loss against tokens: the mean over seeds of what the runs logged, lightly smoothed."""
    names = Names(comparisons)
    every = [training_series(one, runs_of(one, runs), names) for one in comparisons]
    lines = [one for series in every for one in series if one.drawn]
    if not lines:
        raise UserError("--plot-kind", "training", "no run has logged losses")
    figure, grid = _panels(width, panel_titles(comparisons))
    settled = [value for one in lines for value in one.values(START * one.x[-1])]
    for axes, series in zip(grid, every, strict=True):
        _draw(axes, series, markers=False)
        axes.set_yscale("log")
        axes.set_ylim(0.97 * max(min(settled), 1e-9), 1.03 * max(settled))
        log_ticks(axes.yaxis, number)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlim(0, max(one.x[-1] for one in lines) * 1.02)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: millions(round(value))))
        axes.set_xlabel("tokens trained on")
        if _cell(axes).is_first_col():
            axes.set_ylabel("training loss (nats per token)")
    notes = [f"Loss on training text; {source(comparisons)}"]
    notes.append(f"A point is the mean of {SMOOTHED} logged steps.")
    if any(math.isfinite(low) for series in every if has_bands(series) for one in series for low in one.low):
        notes.append("Bands: standard deviation over seeds.")
    finish(figure, _legend(every), [" ".join(notes)])
    return figure


# Panels of lines


def _panels(width: float, titles: Sequence[str], share: bool = True) -> tuple[Figure, list[Axes]]:
    """Make axes for each title, in as many columns as the width has room for."""
    columns = max(1, min(len(titles), int(width / NARROWEST)))
    rows = -(-len(titles) // columns)
    figure = sheet(width, HEIGHT if rows == 1 else LOWER * rows)
    flat = list(figure.subplots(rows, columns, squeeze=False, sharey=share).flat)
    for spare in flat[len(titles) :]:
        figure.delaxes(spare)
    for axes, title in zip(flat, titles, strict=False):
        axes.set_title(title).set_in_layout(False)
        axes.tick_params(length=2.5, width=0.6, pad=2)
    return figure, flat[: len(titles)]


def _cell(axes: Axes) -> SubplotSpec:
    place = axes.get_subplotspec()
    assert place is not None
    return place


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
            color, below = one.style.color, over - 1.5
            if single:
                axes.vlines(one.x, one.low, one.high, alpha=0.6, linewidth=1, color=color, zorder=below)
            else:
                axes.fill_between(
                    one.x, one.low, one.high, alpha=0.16, linewidth=0, color=color, zorder=below
                )


def _legend(every: Every) -> list[tuple[str, Style]]:
    """Return the lines that are drawn, those that end highest first."""
    drawn = [one for series in every for one in series if one.drawn]
    drawn.sort(key=lambda one: -[y for y in one.y if math.isfinite(y)][-1])
    return list({one.name: (one.name, one.style) for one in drawn}.values())


def tokens(count: int) -> str:
    """Write 64, 2048, 16k: exact where it is short."""
    return f"{count // 1024}k" if count >= 10_000 and count % 1024 == 0 else str(count)


def _context_axis(axes: Axes, columns: Sequence[Column]) -> None:
    """Make x logarithmic in multiples of T, with a tick for each whole power of two that has room."""
    doubled = [one for one in columns if math.log2(one.multiple).is_integer()]
    shown = doubled if len(doubled) > 1 else list(columns)
    panel = axes.figure.bbox.width / axes.figure.dpi / _cell(axes).get_gridspec().ncols
    step = max(1, math.ceil(len(shown) / max(1.0, panel / 0.6)))
    at_t = next((i for i, one in enumerate(shown) if one.multiple == 1), 0)
    shown = shown[at_t % step :: step]
    names = [
        f"{number(one.multiple)}x" if one.window is None else f"{tokens(one.window)}\n{number(one.multiple)}x"
        for one in shown
    ]
    axes.set_xscale("log", base=2)
    axes.set_xticks([one.multiple for one in shown], names)
    axes.xaxis.set_minor_locator(NullLocator())
    if columns:
        low, high = columns[0].multiple, columns[-1].multiple
        room = (high / low) ** 0.04 if high > low else 2**0.5
        axes.set_xlim(low / room, high * room)


def _symlog_axis(axes: Axes, linear: float, values: Sequence[float]) -> None:
    """Make y linear within ± `linear` and logarithmic beyond, around the values and 0."""
    low, high = min([*values, -linear]), max([*values, linear])
    top, bottom = (value * 1.25 if value > linear else linear * 1.4 for value in (high, -low))
    axes.set_yscale("symlog", linthresh=linear, linscale=0.6)
    axes.set_ylim(-bottom, top)
    few = max(top, bottom) / linear < 1000
    locator = SymmetricalLogLocator(base=10, linthresh=linear, subs=[1, 2, 5] if few else [1])
    ticks = [t for t in locator.tick_values(-bottom, top) if -bottom <= t <= top]
    axes.yaxis.set_major_locator(FixedLocator([t for t in ticks if t == 0 or abs(t) >= 0.99 * linear]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: ("+" if v > 0 else "") + number(v)))
