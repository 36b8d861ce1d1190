"""Lines over context: panels side by side, multiples of T on a log axis, bands, names at the ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from posenc.report.pictures.axes import MARK
from posenc.report.plots.canvas import SMALLEST, line_look, marker_look, sheet
from posenc.report.plots.scale import number
from posenc.report.plots.series import Series, has_bands
from posenc.results.comparison import Column

HEIGHT = 2.6  # inches, of a row of panels
TALLEST = 5.5  # inches, of a panel that grows with its lines, so that their names fit beside it
TICKS = 0.75  # inches, of ticks and label below the axes
STEP = 0.12  # inches from name to name
LOWER = 2.0  # inches, of a row where there are several
NARROWEST = 2.0  # inches, of a panel
BAND, BAR = 0.16, 0.6  # opacity


def panels(width: float, titles: Sequence[str], lines: int, share: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure with an axes for each title, in as many columns as the width has room for.

    `lines` are those of a panel; a single one grows with them.
    """
    columns = max(1, min(len(titles), int(width / NARROWEST)))
    rows = -(-len(titles) // columns)
    tall = TICKS + STEP * (lines + 1)
    height = HEIGHT if len(titles) > 1 or tall > TALLEST else max(HEIGHT, tall)
    figure = sheet(width, height if rows == 1 else LOWER * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share)
    flat = list(grid.flat)
    for spare in flat[len(titles) :]:
        figure.delaxes(spare)
    for axes, title in zip(flat, titles, strict=False):
        axes.set_title(title).set_in_layout(False)
        axes.tick_params(length=2.5, width=0.6, pad=2)
    return figure, flat[: len(titles)]


def draw_series(axes: Axes, series: Sequence[Series], markers: bool = True) -> None:
    """Lines with their bands; those that come first lie on top."""
    for i, one in enumerate(series):
        if not one.drawn:
            continue
        over = 3 - i / len(series)
        single = sum(map(math.isfinite, one.y)) == 1  # no line: a marker, and a bar for the band
        look = {**line_look(one.style), **(marker_look(one.style) if markers or single else {})}
        axes.plot(one.x, one.y, zorder=over, label=one.name, **look)
        if has_bands(series) and any(map(math.isfinite, one.low)):
            color, under = one.style.color, over - 1.5
            if single:
                axes.vlines(one.x, one.low, one.high, color=color, alpha=BAR, linewidth=1, zorder=under)
            else:
                axes.fill_between(
                    one.x, one.low, one.high, color=color, alpha=BAND, linewidth=0, zorder=under
                )


def most_lines(every: Sequence[Sequence[Series]]) -> int:
    """Lines of the fullest panel."""
    return max((sum(one.drawn for one in series) for series in every), default=0)


def mark_train_length(axes: Axes, name: str = "T", at: float = 1.0) -> None:
    """A dashed line at the training length, named above the axes; none where it lies outside of them."""
    low, high = axes.get_xlim()
    if not low <= at <= high:
        return
    axes.axvline(at, **{**MARK, "linewidth": 0.7, "linestyle": (0, (1, 2))})
    axes.text(
        at,
        1.01,
        name,
        transform=axes.get_xaxis_transform(),
        ha="center",
        va="bottom",
        fontsize=SMALLEST,
        color="0.3",
    )


def context_axis(axes: Axes, columns: Sequence[Column]) -> None:
    """A log2 axis in multiples of T, a tick for each column that there is room for, with its tokens."""
    inches = 0.7 * axes.figure.bbox.width / axes.figure.dpi / _columns(axes)
    shown = _with_room([column.multiple for column in columns], inches / 0.36)
    windows = {column.multiple: column.window for column in columns}
    names = [
        "\n".join(
            ([tokens(windows[multiple])] if windows[multiple] is not None else [])
            + ([f"{number(multiple)}x"] if multiple >= 0.25 or windows[multiple] is None else [])
        )
        for multiple in shown
    ]
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FixedFormatter(names))
    if columns:
        low, high = columns[0].multiple, columns[-1].multiple
        room = (high / low) ** 0.04 if high > low else 2**0.5
        axes.set_xlim(low / room, high * room)


def leftmost(axes: Axes) -> bool:
    """Whether a panel begins a row."""
    place = axes.get_subplotspec()
    return place is None or place.is_first_col()


def tokens(count: object) -> str:
    """64, 2048, 16k: exact where it is short."""
    if isinstance(count, int) and count >= 10_000 and count % 1024 == 0:
        return f"{count // 1024}k"
    return str(count)


def _columns(axes: Axes) -> int:
    place = axes.get_subplotspec()
    return 1 if place is None else int(place.get_gridspec().ncols)


def _with_room(multiples: Sequence[float], most: float) -> list[float]:
    """Those that can be named without touching: T, then the ends, then as they come."""
    if len(multiples) < 2:
        return list(multiples)
    inches = [math.log2(m) for m in multiples]
    least = (inches[-1] - inches[0]) / max(most, 1.0)
    kept: list[float] = []
    first = [m for m in multiples if m == 1.0] + [multiples[-1], multiples[0]]
    whole = [m for m in multiples if math.log2(m).is_integer()]
    for multiple in [*first, *whole, *(multiples if len(whole) < 4 else [])]:
        if all(abs(math.log2(multiple / other)) >= least * 0.999 for other in kept):
            kept.append(multiple)
    return sorted(kept)
