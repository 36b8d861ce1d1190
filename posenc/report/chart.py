"""Parts of every chart of comparisons: rows with names and styles, panels, and the note below a figure.

Row names are data of a chart and never part of an expression, so that a name can do nothing there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.core.errors import plural
from posenc.report.reports import cell_lines
from posenc.report.sentences import facts_of
from posenc.report.styles import MARKERS, Style, styles_of
from posenc.report.texts import cut, length_text, row_label
from posenc.report.vega import Spec, nominal
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison, Row

DIGITS = 6  # significant digits of a coordinate: more would only make the page larger
# The scale of changes is about linear up to here and logarithmic beyond, so that 0.01 and 2 nats are both
# seen.
FINE = 0.02
CHANGE_TICKS = (0, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SIGNED_LABELS = {"format": "~g", "labelExpr": "(datum.value > 0 ? '+' : '') + datum.label"}

Point = dict[str, Any]  # a datum of Vega's: panel, row, x, y (null: a gap), low and high (its band), text


@dataclass(frozen=True)
class Chart:
    """A chart of one or several panels; `spec` draws all of its data as if it were one."""

    title: str
    spec: Spec
    panels: Sequence[str]
    rows: Sequence[str]  # of the legend: those with a number
    note: str  # below a figure
    has_own_scales: bool = False  # the panels do not share y
    # In a file of one panel each point has its name beside it, and there is no legend.
    names_points: bool = False


@dataclass(frozen=True)
class Panel:
    """A comparison with the title of its panel."""

    comparison: Comparison
    title: str


class RowNames:
    """A short name, a number and a style for each row of the comparisons of a page or a figure."""

    def __init__(self, comparisons: Iterable[Comparison]) -> None:
        encodings = {}
        for comparison in comparisons:
            for row in comparison.rows:
                encodings[row_label(row)] = row.encoding
        count_of = Counter(cut(label) for label in encodings)
        self._names: dict[str, str] = {}
        for label in encodings:
            is_unique = count_of[cut(label)] == 1
            self._names[label] = cut(label) if is_unique else label
        self.styles: dict[str, Style] = {}
        for label, style in styles_of(encodings).items():
            self.styles[self._names[label]] = style

    def name(self, row: Row) -> str:
        """Return the name of a row: its label, without its middle if it is long."""
        return self._names[row_label(row)]

    def number(self, name: str) -> int:
        """Return the number n of a row among all of them: its colour is `var(--sn)`."""
        return list(self.styles).index(name)


def panels_of(comparisons: Sequence[Comparison]) -> list[Panel]:
    """Return a panel for each comparison, whose title has the facts that not all of them share."""
    facts = [facts_of(comparison) for comparison in comparisons]
    shared = _shared_facts(facts)
    panels = []
    for comparison, facts_of_panel in zip(comparisons, facts, strict=True):
        title = ", ".join(fact for fact in facts_of_panel if fact not in shared)
        panels.append(Panel(comparison, cut(title)))
    return panels


def source_note(panels: Sequence[Panel]) -> str:
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


def band_ends(cell: Cell, value: float, spread: float | None) -> tuple[float, float] | None:
    """Return the ends of the band around a value of a cell; None without one.

    It is the standard deviation over seeds; for one seed the 95% interval over documents of the change
    against T, drawn around the value.
    """
    if spread is not None and math.isfinite(spread):
        return short_number(value - spread), short_number(value + spread)
    if cell.change_ci95 is None or cell.change is None:
        return None
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


@dataclass(frozen=True)
class RowChannels:
    """The encoding channels that tell rows apart."""

    color: Spec
    dash: Spec
    shape: Spec


def row_channels(rows: Sequence[str], names: RowNames) -> RowChannels:
    """Return colour, dashes and shape of each row."""
    styles = [names.styles[row] for row in rows]

    def channel(values: Sequence[object]) -> Spec:
        return nominal("row", scale={"domain": list(rows), "range": list(values)})

    # A line is two points wide, and [1, 0] is solid.
    dashes = [[round(2 * part, 1) for part in style.dash] or [1, 0] for style in styles]
    return RowChannels(
        color=channel([f"var(--s{names.number(row)})" for row in rows]),
        dash=channel(dashes),
        shape=channel([MARKERS[style.marker] for style in styles]),
    )


def visible_if_chosen(opacity: float, otherwise: float = 0.12) -> Spec:
    """Return the opacity of a row: faint while another row is chosen in the legend."""
    return {"condition": {"param": "chosen", "value": opacity}, "value": otherwise}


def selections() -> list[Spec]:
    """Return the selections of a reader of the page: rows in the legend, and the nearest point."""
    nearest = {"type": "point", "nearest": True, "on": "pointerover", "clear": "pointerout"}
    return [
        {"name": "chosen", "select": {"type": "point", "fields": ["row"]}, "bind": "legend"},
        {"name": "pointed", "select": nearest},
    ]


def point_size(size: float, pointed: float = 170) -> Spec:
    """Return the size of a point, larger while it is pointed at."""
    return {"condition": {"param": "pointed", "empty": False, "value": pointed}, "value": size}


def change_scale(low: float, high: float, fine: float) -> Spec:
    """Return a scale that is about linear up to `fine` on both sides of 0, and logarithmic beyond."""
    return {"nice": False, "type": "symlog", "constant": fine, "domain": [low, high]}


def change_axis(low: float, high: float) -> Spec:
    """Return an axis of changes with their signs."""
    ticks = sorted({sign * tick for tick in CHANGE_TICKS for sign in (-1, 1)})
    return {**SIGNED_LABELS, "values": [tick for tick in ticks if low <= tick <= high]}
