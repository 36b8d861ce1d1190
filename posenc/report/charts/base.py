"""Parts of every chart of comparisons: rows with names and styles, panels, channels, and the caption.

Row names are data of a chart and never part of an expression, so that a name can do nothing there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from posenc.core.errors import plural
from posenc.core.quantities import length_text
from posenc.report.cell_texts import cell_lines
from posenc.report.charts.looks import Look
from posenc.report.charts.styles import MARKERS, Style, styles_of
from posenc.report.sentences.facts import facts_of
from posenc.report.texts import cut, row_label
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison
from posenc.results.rows import Row

DIGITS = 6  # significant digits of a coordinate: more would only make the page larger
# The scale of changes is about linear up to here and logarithmic beyond, so that 0.01 and 2 nats are both
# seen.
FINE = 0.02
# Vega places the ticks of a symlog scale as on a linear one, and the fine part around 0 would have none.
CHANGE_TICKS = (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SIGNED_LABEL = "(datum.value > 0 ? '+' : '') + datum.label"
LABEL_EXTENT = 28  # points: the labels of y are at least so wide, so that the panels of a page stand in line
LINE_SYMBOL = 150  # square points: a symbol is 12 wide
FAINT_OPACITY = 0.12  # of a row while another one is chosen in the legend


@dataclass(frozen=True)
class Chart:
    """A chart of one or several panels; `layers` draws all of its data as if it were one."""

    title: str
    layers: alt.LayerChart
    panels: Sequence[str]
    rows: Sequence[str]  # of the legend: those with a number
    caption: str
    height: float | alt.Step  # of a panel in a file
    has_own_scales: bool = False  # the panels do not share y
    has_markers: bool = True  # else the legend shows lines
    # Draws the names of the points on a panel of this width and height: a file has no tooltips.
    name_points: Callable[[float, float], alt.LayerChart] | None = None

    def legend(self, columns: int) -> alt.LegendConfig:
        """Return the legend in so many columns."""
        if self.has_markers:
            return alt.LegendConfig(columns=columns)
        return alt.LegendConfig(columns=columns, symbolType="stroke", symbolSize=LINE_SYMBOL)


@dataclass(frozen=True)
class Panel:
    """A comparison with the title of its panel."""

    comparison: Comparison
    title: str


class RowNames:
    """A short name, a number and a style for each row of the comparisons of a page or a figure."""

    def __init__(self, comparisons: Iterable[Comparison]) -> None:
        rows = {row.full_label: row for comparison in comparisons for row in comparison.rows}
        count_of = Counter(cut(row_label(row)) for row in rows.values())
        self._names: dict[str, str] = {}
        for label, row in rows.items():
            # Two long names may be alike once their middles are cut. Then both stay whole.
            short_name = cut(row_label(row))
            self._names[label] = short_name if count_of[short_name] == 1 else row_label(row)
        # A row that the user has renamed keeps its style.
        encodings = {label: row.encoding for label, row in rows.items()}
        self.styles: dict[str, Style] = {}
        for label, style in styles_of(encodings).items():
            self.styles[self._names[label]] = style

    def name(self, row: Row) -> str:
        """Return the name of a row, without its middle if it is long."""
        return self._names[row.full_label]

    def number(self, name: str) -> int:
        """Return the number n of a row among all of them: its colour is `var(--sn)`."""
        return list(self.styles).index(name)


def panels_of(comparisons: Sequence[Comparison]) -> list[Panel]:
    """Return a panel for each comparison, whose title has the facts that not all of them share.

    No two panels have one title, by which their points are told apart: a number follows the second.
    """
    panels: list[Panel] = []
    counts: Counter[str] = Counter()
    for comparison, facts in zip(comparisons, distinct_facts(comparisons), strict=True):
        title = cut(", ".join(facts))
        counts[title] += 1
        if counts[title] > 1:
            title = f"{title} ({counts[title]})".strip()
        panels.append(Panel(comparison, title))
    return panels


def distinct_facts(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """Return of each comparison the facts that not all of them share."""
    facts_by_comparison = [facts_of(comparison) for comparison in comparisons]
    shared = _shared_facts(facts_by_comparison)
    return [[fact for fact in facts if fact not in shared] for facts in facts_by_comparison]


def source_sentence(panels: Sequence[Panel]) -> str:
    """Return the facts that all panels share, as a sentence."""
    shared = _shared_facts([facts_of(panel.comparison) for panel in panels])
    return ", ".join(cut(fact) for fact in shared) + "."


def _shared_facts(facts_by_panel: Sequence[Sequence[str]]) -> list[str]:
    first = facts_by_panel[0]
    return [fact for fact in first if all(fact in facts for facts in facts_by_panel)]


# --- points


def short_number(value: float) -> float:
    """Return a coordinate without the digits that nobody sees."""
    return float(f"{value:.{DIGITS}g}")


def band_ends(cell: Cell, value: float, spread: float | None) -> tuple[float, float] | tuple[None, None]:
    """Return the ends of the band around a value of a cell; None twice without one.

    It is the standard deviation over seeds; for one seed the 95% interval over documents of the change
    against T, drawn around the value.
    """
    if spread is not None and math.isfinite(spread):
        return short_number(value - spread), short_number(value + spread)
    if cell.change_ci95 is None or cell.change is None:
        return None, None
    # The interval of the loss itself would be wider: it holds how hard the texts are, which all rows share.
    low, high = cell.change_ci95
    return short_number(value + low - cell.change), short_number(value + high - cell.change)


def tooltip(name: str, cell: Cell, metric: str) -> str:
    """Return the lines that pointing at a cell shows: its window, its numbers, and how many were scored."""
    window = length_text(round(cell.multiple, 3))
    if cell.window is not None:
        window += f" = {cell.window} tokens"
    counts = plural(cell.seeds, "seed")
    if cell.targets is not None:
        counts += f", {cell.targets} targets, {cell.documents} documents"
    return "\n".join([name, window, *cell_lines(cell, metric), counts])


# --- channels


class RowChannels:
    """The channels that tell rows apart, and what a reader of the page can do with them."""

    def __init__(self, rows: Sequence[str], names: RowNames, look: Look, has_markers: bool = True) -> None:
        self._look = look
        styles = [names.styles[row] for row in rows]
        colors = [look.row_color(names.number(row), names.styles[row]) for row in rows]
        dashes = [_dashes_of(style) for style in styles]
        markers = [MARKERS[style.marker] for style in styles]
        # The legend shows markers or, of a chart without any, lines with their dashes. Vega-Lite puts
        # channels of the same domain into one legend, also one that has none: an empty row keeps it out.
        in_legend = list(rows)
        beside_legend = [*rows, ""]
        self.color = alt.Color("row:N", scale=alt.Scale(domain=in_legend, range=colors))
        if has_markers:
            self.shape = alt.Shape("row:N", scale=alt.Scale(domain=in_legend, range=markers))
            self.dash = alt.StrokeDash(
                "row:N", scale=alt.Scale(domain=beside_legend, range=dashes), legend=None
            )
        else:
            self.shape = alt.Shape("row:N", scale=alt.Scale(domain=beside_legend, range=markers), legend=None)
            self.dash = alt.StrokeDash("row:N", scale=alt.Scale(domain=in_legend, range=dashes))
        self._chosen = alt.selection_point(name="chosen", fields=["row"], bind="legend")
        # The nearest point, since a marker of a few pixels is hard to hit, and lines without markers have
        # none to hit.
        self._pointed = alt.selection_point(
            name="pointed", nearest=True, on="pointerover", clear="pointerout"
        )

    def opacity(self, opacity: float, otherwise: float = FAINT_OPACITY) -> Any:
        """Return the opacity of a row: faint while another row is chosen in the legend."""
        if not self._look.is_interactive:
            return alt.value(opacity)
        return alt.when(self._chosen).then(alt.value(opacity)).otherwise(alt.value(otherwise))

    def area(self, area: float) -> Any:
        """Return the area of a point, larger while it is pointed at."""
        if not self._look.is_interactive:
            return alt.value(area)
        return alt.when(self._pointed, empty=False).then(alt.value(170)).otherwise(alt.value(area))

    def encode_markers(self, markers: alt.Chart, x: alt.X, y: alt.Y, area: float) -> alt.Chart:
        """Return markers that look like their rows and show a text while they are pointed at."""
        return markers.encode(
            x=x,
            y=y,
            color=self.color,
            shape=self.shape,
            opacity=self.opacity(1),
            size=self.area(area),
            tooltip="text:N",
        )

    def choosable(self, layer: alt.Chart) -> alt.Chart:
        """Let a reader of the page choose rows in the legend.

        It must be the first layer with a legend, or the one after it: Vega-Lite merges the legends of layers,
        and lost the clicks when the points, which come last, had the choice.
        """
        return layer.add_params(self._chosen) if self._look.is_interactive else layer

    def pointable(self, points: alt.Chart) -> alt.Chart:
        """Let a reader of the page point at the nearest point."""
        return points.add_params(self._pointed) if self._look.is_interactive else points


def _dashes_of(style: Style) -> list[float]:
    """Return the dashes of a row as Vega takes them: on and off, in points."""
    # A line is two points wide, and [1, 0] is solid.
    return [round(2 * part, 1) for part in style.dash] or [1, 0]


def change_scale(low: float, high: float, fine: float) -> alt.Scale:
    """Return a scale that is about linear up to `fine` on both sides of 0, and logarithmic beyond."""
    return alt.Scale(type="symlog", constant=fine, domain=[low, high], nice=False, zero=False)


def change_axis(title: str, low: float, high: float, **options: Any) -> alt.Axis:
    """Return an axis of changes with their signs."""
    ticks = sorted({sign * tick for tick in CHANGE_TICKS for sign in (-1, 1)})
    values = [tick for tick in ticks if low <= tick <= high]
    return alt.Axis(title=title, values=values, format="~g", labelExpr=SIGNED_LABEL, **options)
