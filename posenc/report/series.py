"""Prepare what charts show: styles and short names of rows, their points, the words around a chart."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.core.errors import plural
from posenc.report.captions import cut, facts_of, label, length, percent
from posenc.report.table import cell_lines
from posenc.results.comparison import Comparison, Row
from posenc.results.rows import Cell
from posenc.results.schema import RECALL

DIGITS = 6  # significant ones of a coordinate
Point = dict[str, Any]  # panel, row, x, y (null: a gap), low and high: the ends of its band, text
# Hues of Okabe and Ito, moved apart in lightness until the nearest two differ by more under simulated colour
# blindness than theirs, and until the palest reaches a contrast of 2.8 to white (their yellow has 1.3).
ON_WHITE = ("#1F4FB5", "#A02E08", "#3A8560", "#DA62B0", "#B8942A", "#2B9DF4", "#66106A", "#1A1A1A")
ON_DARK = ("#1F7AE0", "#D95A10", "#75EA8E", "#F7B4F5", "#C9A300", "#7C9AD3", "#966087", "#F2F2F2")
DASHES: tuple[tuple[float, ...], ...] = ((), (7, 2))  # on and off in line widths; () is solid
VARIANT_DASHES: tuple[tuple[float, ...], ...] = (
    (4, 1.5),
    (1.2, 1.2),
    (6, 1.5, 1.2, 1.5),
    (6, 1.5, 1.2, 1.5, 1.2, 1.5),
    (2.5, 1, 2.5, 3),
)
MARKERS = "os^DvPX<>*"
# Of the salts from 0 on the first with which the encodings of the comparison that the README shows have
# distinct colours and markers and solid lines, no two of the first 29 encodings look alike, and no two
# extensions look alike on one encoding.
SALT = 6653336


@dataclass(frozen=True)
class Style:
    """How a line is drawn. Colours are `#RRGGBB`."""

    color: str  # on white
    dark: str  # on a dark background
    dash: tuple[float, ...]  # on and off in line widths; () is solid
    marker: str  # a letter of MARKERS


def style_of(label: str, encoding: str) -> Style:
    """Return the style of a row, a function of its label alone: what another package adds changes none.

    The encoding's name gives colour, marker and dash. What follows it (a test-time extension, settings,
    options) keeps the colour and gives marker and dash.
    """
    variant = label.removeprefix(encoding).strip()
    color, marker, dash = _digits(encoding, len(ON_WHITE), len(MARKERS), len(DASHES))
    if variant:
        dash, marker = _digits(variant, len(VARIANT_DASHES), len(MARKERS))
    return Style(
        ON_WHITE[color], ON_DARK[color], (VARIANT_DASHES if variant else DASHES)[dash], MARKERS[marker]
    )


def styles_of(encodings: Mapping[str, str]) -> dict[str, Style]:
    """Return the styles of rows that are shown together, given as encodings by label: no two alike."""
    found: dict[str, Style] = {}

    def place(name: str) -> tuple[bool, str]:
        """Put encodings before their variants; of two alike the later keeps its style: nope beside fope."""
        return name == encodings[name], encodings[name]

    for name in sorted(sorted(encodings), key=place, reverse=True):
        style, attempt = style_of(name, encodings[name]), 0
        while style in found.values() and attempt < 2 * len(VARIANT_DASHES) * len(MARKERS):
            style, attempt = style_of(f"{encodings[name]} {name} {attempt}", encodings[name]), attempt + 1
        found[name] = style
    return {name: found[name] for name in encodings}


def _digits(text: str, *bases: int) -> list[int]:
    """Return numbers below each of the bases, from a hash of the text."""
    digest = hashlib.sha256(f"{SALT} {text}".encode("utf-8", "backslashreplace")).digest()
    number, digits = int.from_bytes(digest[:8], "big"), []
    for base in bases:
        number, digit = divmod(number, base)
        digits.append(digit)
    return digits


# --- points


class Names:
    """A short name, a number and a style for each row of the comparisons of a page or a figure."""

    def __init__(self, comparisons: Iterable[Comparison]) -> None:
        rows = {label(row): row.encoding for one in comparisons for row in one.rows}
        count = Counter(map(cut, rows))
        self._names = {whole: cut(whole) if count[cut(whole)] == 1 else whole for whole in rows}
        self.styles = {self._names[whole]: style for whole, style in styles_of(rows).items()}

    def of(self, row: Row) -> str:
        """Return what to call a row: its label, without its middle where it is long."""
        return self._names[label(row)]

    def number(self, name: str) -> int:
        """Return its place among all: its colour is `var(--s3)`."""
        return list(self.styles).index(name)


def context_points(comparison: Comparison, names: Names, panel: str, change: bool = False) -> Iterator[Point]:
    """Yield the rows' means by multiple of T, or their changes against T.

    The band is the standard deviation over seeds; for one seed the 95% interval over documents of the change
    against T, drawn around the number.
    """
    for row in comparison.rows:
        for column, cell in zip(comparison.columns, row.cells, strict=True):
            value, spread = (cell.change, cell.change_spread) if change else (cell.mean, cell.spread)
            point: Point = {"panel": panel, "row": names.of(row), "x": _short(column.multiple), "y": None}
            if value is not None and math.isfinite(value):
                point |= {"y": _short(value), "text": _text(names.of(row), cell, comparison)}
                point |= dict(zip(("low", "high"), _ends(cell, value, spread), strict=False))
            yield point


def _ends(cell: Cell, value: float, spread: float | None) -> list[float]:
    """Return the ends of the band around a value of a cell; none without one."""
    if spread is not None and math.isfinite(spread):
        return [_short(value - spread), _short(value + spread)]
    if cell.change_ci95 is not None and cell.change is not None:
        return [_short(value + end - cell.change) for end in cell.change_ci95]
    return []


def _text(name: str, cell: Cell, comparison: Comparison) -> str:
    """Return what pointing at a cell shows, in lines: window, the cell of the table, what it is of."""
    place = length(round(cell.multiple, 3)) + ("" if cell.window is None else f" = {cell.window} tokens")
    counts = plural(cell.seeds, "seed")
    if cell.targets is not None:
        counts += f", {cell.targets} targets, {cell.documents} documents"
    return "\n".join([name, place, *cell_lines(cell, comparison.header.metric), counts])


def grid_points(comparison: Comparison, names: Names, panel: str) -> Iterator[Point]:
    """Yield each row's recall by window and distance, with the training's pairs; a panel a row."""
    for row in comparison.rows:
        own = row.recall
        usual = {cell.pairs for cell in ([own.within, *own.beyond] if own else []) if cell}
        for cell in own.grid if own else ():
            if cell.pairs in usual:
                title = ", ".join(filter(None, [names.of(row), panel]))
                point: Point = {"panel": title, "row": str(cell.window), "column": str(cell.distance)}
                yield point | {"of": "recall", "shade": _short(cell.accuracy), "text": percent(cell)[:-1]}


def use_points(comparison: Comparison, names: Names, panel: str) -> tuple[float, list[Point]]:
    """Return the longest window of both, and of each row the change of its loss there and its recall.

    The bands are those of `context_points`, and the 95% interval of the recall in per cent.
    """
    places = {column.multiple: i for i, column in enumerate(comparison.columns)}
    beside = comparison.header.protocol != RECALL  # whose own windows ask for other values: no change
    known = comparison.recall.multiples if comparison.recall and beside else []
    at = max((one for one in known if one in places), default=0.0)
    points = []
    for row in comparison.rows if at else ():
        cell, own = row.cells[places[at]], row.recall
        far = own.beyond[known.index(at)] if own else None
        if cell.change is None or not math.isfinite(cell.change) or own is None or far is None:
            continue
        low, high = (_short(100 * end) for end in far.ci95)
        learned = own.learned is not False
        text = _text(names.of(row), cell, comparison) + f"\nrecall {percent(far)}"
        text += "" if learned else ", did not learn"
        point: Point = {"panel": panel, "row": names.of(row), "x": _short(cell.change), "text": text}
        point |= {"learned": learned, "y": _short(100 * far.accuracy), "low": low, "high": high}
        ends = _ends(cell, cell.change, cell.change_spread)
        points.append(point | dict(zip(("left", "right"), ends, strict=False)))
    return at, points


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


# --- words around a chart


def panel_titles(comparisons: Sequence[Comparison]) -> list[str]:
    """Name what sets the comparisons apart; empty for a single one."""
    every = [facts_of(one) for one in comparisons]
    return [cut(", ".join(part for part in own if not all(part in one for one in every))) for own in every]


def source(comparisons: Sequence[Comparison]) -> str:
    """Say what all of them were measured on."""
    every = [facts_of(one) for one in comparisons]
    return ", ".join(cut(part) for part in every[0] if all(part in one for one in every)) + "."


def band_is(comparisons: Sequence[Comparison]) -> str:
    """Say what the bands are."""
    cells = [cell for one in comparisons for row in one.rows for cell in row.cells]
    if counts := sorted({cell.seeds for cell in cells if cell.spread is not None}):
        over = plural(counts[-1], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
        return f"Bands: standard deviation over {over}."
    return "Bands: 95% CI over documents (1 seed)." if any(cell.change_ci95 for cell in cells) else ""


def per_bit(comparison: Comparison) -> float | None:
    """Return what one bit per byte is in the comparison's metric; None for perplexities or unknown."""
    metric = comparison.header.metric
    if metric != "nats":
        return 1.0 if metric == "bpb" else None
    records = [record for run in comparison.runs for record in run.records]
    ratios = [record["nats"] / record["bpb"] for record in records if record["nats"] and record["bpb"]]
    return statistics.median(ratios) if ratios else None
