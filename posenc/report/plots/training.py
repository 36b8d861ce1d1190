"""Training loss against tokens: the mean over seeds of what the runs logged, lightly smoothed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from posenc.core.errors import UserError
from posenc.report.plots.ends import close
from posenc.report.plots.lines import draw_series, leftmost, most_lines, panels
from posenc.report.plots.members import runs_of
from posenc.report.plots.scale import apply, split_of
from posenc.report.plots.series import NAN, Names, Series, has_bands, panel_titles, source
from posenc.report.words import millions
from posenc.results.bundle import losses_of
from posenc.results.comparison import Comparison, Row
from posenc.results.load import Run

SMOOTHED = 5  # logged steps, of which a point is the mean
TYPICAL = 0.75  # of the points: those get the fine part of the scale
START = 0.05  # of a run's tokens: what lies higher than all that follows may leave the axes at the top


def training(runs: Sequence[Run], comparisons: Sequence[Comparison], width: float) -> Figure:
    """The figure; from what the runs logged. Raises UserError where no run has logged anything."""
    names = Names(comparisons)
    every = [training_series(one, runs_of(one, runs), names) for one in comparisons]
    if not any(one.drawn for series, _ in every for one in series):
        raise UserError("--plot-kind", "training", "no run has logged losses")
    figure, axes = panels(width, panel_titles(comparisons), most_lines([series for series, _ in every]))
    most = max(one.x[-1] for series, _ in every for one in series if one.x)
    values = [v for series, _ in every for one in series for v in _after(one)]
    near = sorted(values)
    split = split_of(values, near[: max(1, round(TYPICAL * len(near)))])
    for panel, (series, _) in zip(axes, every, strict=True):
        draw_series(panel, series, markers=False)
        if split is not None:
            apply(panel, split)
        elif values:
            room = 0.05 * (max(values) - min(values)) or 0.5
            panel.set_ylim(min(values) - room, max(values) + room)
        panel.set_xlim(0, most * 1.02)
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: millions(round(value))))
        panel.set_xlabel("tokens trained on")
        if leftmost(panel):
            panel.set_ylabel("training loss (nats per token)")
    parts = [
        source(comparisons, skip=["protocol", "stride"]),
        f"A point is the mean of {SMOOTHED} logged steps.",
    ]
    if split is not None:
        parts.append(split.words)
    banded = [one for series, _ in every if has_bands(series) for one in series]
    if any(math.isfinite(low) for one in banded for low in one.low):
        parts.append("Bands: standard deviation over seeds, as far as all of them have trained.")
    notes = [" ".join(parts), *(note for _, found in every for note in found)]
    legend = {one.name: (one.name, one.style) for series, _ in every for one in series if one.drawn}
    return close(figure, axes, every[0][0], list(legend.values()), notes)


def training_series(
    comparison: Comparison, runs: Sequence[Run], names: Names
) -> tuple[list[Series], list[str]]:
    """A line for each set of runs (as trained, where rows share them), and what there is no line of."""
    by_path = {str(run.path): run for run in runs}
    trained = {path for row in comparison.rows if row.extend is None for path in row.runs}
    drawn: set[tuple[str, ...]] = set()
    found, notes = [], []
    for row in comparison.rows:
        if (row.extend is not None and set(row.runs) <= trained) or tuple(row.runs) in drawn:
            continue
        drawn.add(tuple(row.runs))
        members = [by_path[path] for path in row.runs if path in by_path]
        logs = {run.path: log for run in members if (log := losses_of(run))}
        found.append(_mean(names.of(row), names, row, list(logs.values())))
        for run in members:
            seed = "" if run.seed is None else f" seed {run.seed}"
            if run.path not in logs:
                notes.append(f"No curve: {names.of(row)}{seed} ({run.state})")
            elif run.state != "finished":
                notes.append(
                    f"{names.of(row)}{seed}: {run.state} after {millions(round(max(logs[run.path])))} tokens"
                )
    return found, notes


def _mean(name: str, names: Names, row: Row, logs: Sequence[dict[float, float]]) -> Series:
    """The mean over the seeds that have logged a number of tokens; the band where all of them have."""
    one = Series(name, names.style(row))
    smooth = [smoothed(log) for log in logs]
    for at in sorted({tokens for log in smooth for tokens in log}):
        here = [log[at] for log in smooth if at in log]
        if len(here) < len(smooth) and any(max(log) >= at for log in smooth if at not in log):
            continue  # logged at other steps: no mean of some seeds among means of all
        mean = statistics.fmean(here)
        spread = statistics.stdev(here) if len(here) == len(smooth) > 1 else NAN
        one.x.append(at)
        one.y.append(mean)
        one.low.append(mean - spread)
        one.high.append(mean + spread)
    return one


def smoothed(log: dict[float, float]) -> dict[float, float]:
    """The mean of SMOOTHED logged losses at the middle one; as logged where there are fewer."""
    steps, half = sorted(log), SMOOTHED // 2
    if len(steps) < SMOOTHED:
        return log
    return {
        steps[i]: statistics.fmean(log[step] for step in steps[i - half : i + half + 1])
        for i in range(half, len(steps) - half)
    }


def _after(one: Series) -> list[float]:
    """What is drawn of it after its start."""
    begin = START * one.x[-1] if one.x else 0
    points = zip(one.x, one.y, one.low, one.high, strict=True)
    return [value for x, *values in points if x >= begin for value in values if math.isfinite(value)]
