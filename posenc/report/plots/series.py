"""What plots show of comparisons: numbers by row, short names, and what is missing with its reason."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from posenc.core.errors import visible
from posenc.report.colors import Style, styles_of
from posenc.report.words import label, length, millions
from posenc.results.cells import Cell
from posenc.results.comparison import Comparison, Row
from posenc.results.schema import METRICS
from posenc.results.settings import as_text

LONGEST_NAME = 44  # characters
LONGEST_REASON = 120
MOST_REASONS = 14  # lines below a plot
MOST_BANDS = 12  # lines: the bands of more would hide each other
NAN = math.nan


@dataclass
class Series:
    """A row as a line. y is NaN where there is no number; `low` and `high`, the band, where there is none."""

    name: str
    style: Style
    x: list[float] = field(default_factory=list)
    y: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    crop: float | None = None

    @property
    def drawn(self) -> bool:
        """Whether there is anything to draw."""
        return any(map(math.isfinite, self.y))

    @property
    def end(self) -> tuple[float, float]:
        """The last point that has a number."""
        return next(
            (x, y) for x, y in zip(reversed(self.x), reversed(self.y), strict=True) if math.isfinite(y)
        )


def has_bands(series: Sequence[Series]) -> bool:
    """Whether the lines are few enough for bands."""
    return sum(one.drawn for one in series) <= MOST_BANDS


class Names:
    """A short name and a style for each row of the comparisons of a figure."""

    def __init__(self, comparisons: Iterable[Comparison]) -> None:
        full = list(dict.fromkeys(label(row) for one in comparisons for row in one.rows))
        self._styles = styles_of(full)
        bare = {name: re.sub(r" \(beyond: [^()]*\)", "", name) for name in full}
        count = Counter(bare.values())
        self._short: dict[str, str] = {}
        shorts = {name: cut(bare[name] if count[bare[name]] == 1 else name) for name in full}
        alike, seen = Counter(shorts.values()), Counter[str]()
        for name, short in shorts.items():
            seen[short] += 1
            self._short[name] = f"{short} ({seen[short]})" if alike[short] > 1 else short
        self.policies = [
            f"{self._short[name]}: {cut(found.group(1))} past T"
            for name in full
            if self._short[name] != name and (found := re.search(r" \(beyond: ([^()]*)\)", name))
        ]
        self.policies += [
            f"{self._short[name]}: {cut(name, LONGEST_REASON)}"
            for name, short in shorts.items()
            if alike[short] > 1
        ]

    def of(self, row: Row) -> str:
        """What to call a row: its label, without the policy past T where nothing else has that name."""
        return self._short[label(row)]

    def style(self, row: Row) -> Style:
        """What it looks like."""
        return self._styles[label(row)]


def series_of(comparison: Comparison, names: Names, change: bool = False) -> list[Series]:
    """The rows' means by multiple of T, or their changes against T; in the order of the rows.

    The band is the standard deviation over seeds; for one seed the 95% interval over documents of the change
    against T, drawn around the number.
    """
    found = []
    for row in comparison.rows:
        one = Series(names.of(row), names.style(row), crop=(row.crop or {}).get("mean"))
        for column, cell in zip(comparison.columns, row.cells, strict=True):
            y, low, high = _point(cell, change)
            one.x.append(column.multiple)
            one.y.append(y)
            one.low.append(low)
            one.high.append(high)
        found.append(one)
    return found


def legend_of(comparisons: Sequence[Comparison], names: Names) -> list[tuple[str, Style]]:
    """Every row that has a line somewhere, once."""
    return list(
        {
            names.of(row): (names.of(row), names.style(row))
            for one in comparisons
            for row in one.rows
            if any(cell.mean is not None for cell in row.cells)
        }.values()
    )


def panel_titles(comparisons: Sequence[Comparison]) -> list[str]:
    """The facet, and what else sets the comparisons apart; empty for a single one that is no facet."""
    facets = [_facet(one) for one in comparisons]
    if len(comparisons) < 2:
        return facets
    facts = [_facts(one) for one in comparisons]
    keys = [key for key in facts[0] if len({one[key] for one in facts}) > 1 and not _said(key, comparisons)]
    parts = [[facet, *(one[key] for key in keys)] for facet, one in zip(facets, facts, strict=True)]
    titles = [", ".join(filter(None, some)) for some in parts]
    return [cut(title or f"{i + 1}") for i, title in enumerate(titles)]


def source(comparisons: Sequence[Comparison], skip: Sequence[str] = ()) -> str:
    """What all of them were measured on, as a sentence."""
    facts = [_facts(one) for one in comparisons]
    same = {key: text for key, text in facts[0].items() if len({one[key] for one in facts}) == 1}
    text = ", ".join(text for key, text in same.items() if text and key not in skip)
    return f"{text}." if text else ""


def band_is(comparisons: Sequence[Comparison], every: Sequence[Sequence[Series]]) -> str:
    """What the bands are, in words, or that they are left out."""
    if not all(has_bands(series) for series in every):
        return f"Without bands, as there are more than {MOST_BANDS} lines."
    cells = [cell for one in comparisons for row in one.rows for cell in row.cells]
    counts = sorted({cell.seeds for cell in cells if cell.spread is not None})
    parts = []
    if counts:
        seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        parts.append(f"standard deviation over {seeds} seeds")
    if any(cell.spread is None and cell.change_ci95 is not None for cell in cells):
        parts.append("95% interval of the change against T over documents (one seed)")
    name = "Bars" if all(len(one.columns) == 1 for one in comparisons) else "Bands"
    return f"{name}: {'; '.join(parts)}." if parts else ""


def missing(comparisons: Sequence[Comparison], names: Names) -> list[str]:
    """A sentence that names each row that lacks a number, with the reasons; none where none does."""
    lines: list[str] = []
    titles = panel_titles(comparisons)
    for comparison, title in zip(comparisons, titles, strict=True):
        for row in comparison.rows:
            places: dict[str, list[str]] = {}
            for column, cell in zip(comparison.columns, row.cells, strict=True):
                if cell.note is not None or (cell.mean is not None and not math.isfinite(cell.mean)):
                    places.setdefault(cell.note or ">1e30", []).append(length(column.multiple))
            reasons = [_where(note, at, len(row.cells)) for note, at in places.items()]
            if not reasons and not any(cell.mean is not None for cell in row.cells):
                reasons = [visible(note) for note in row.notes] or ["no number"]
            if reasons:
                where = f" ({title})" if title else ""
                lines.append(cut(f"{names.of(row)}{where} {', '.join(reasons)}", LONGEST_REASON))
    if len(lines) > MOST_REASONS:
        more = len(lines) - MOST_REASONS + 1
        lines = [*lines[: MOST_REASONS - 1], f"and {more} more rows that lack numbers, see the table"]
    return [f"Missing: {'; '.join(lines)}."] if lines else []


def short_unit(comparison: Comparison) -> tuple[str, str]:
    """The unit as it fits an axis, and a sentence with all of it where that is longer."""
    unit = visible(comparison.header["unit"])
    for short in METRICS.values():
        if unit.startswith(short) and unit != short:
            return short, f"{visible(comparison.header['protocol'])}: {unit}."
    return cut(unit), ""


def _where(note: str, places: list[str], columns: int) -> str:
    """`4x, 8x oom`; `1 of 3 diverged` where it is so everywhere."""
    return visible(note) if len(places) == columns else f"{', '.join(places)} {visible(note)}"


def _point(cell: Cell, change: bool) -> tuple[float, float, float]:
    value, spread = (cell.change, cell.change_spread) if change else (cell.mean, cell.spread)
    if value is None or not math.isfinite(value):
        return NAN, NAN, NAN
    if spread is not None and math.isfinite(spread):
        return value, value - spread, value + spread
    if cell.change_ci95 is not None and cell.change is not None:
        low, high = cell.change_ci95
        return value, value + low - cell.change, value + high - cell.change
    return value, NAN, NAN


def _facet(comparison: Comparison) -> str:
    facet = comparison.header["facet"]
    return "" if facet is None else cut(f"{visible(facet['key'])} {visible(facet['value'])}")


def _said(key: str, comparisons: Sequence[Comparison]) -> bool:
    """Whether the facets' values stand in a fact: it would be named twice."""
    facets = [one.header["facet"] for one in comparisons]
    return all(
        facet is not None and visible(facet["value"]) in _facts(one)[key].split()
        for facet, one in zip(facets, comparisons, strict=True)
    )


def _facts(comparison: Comparison) -> dict[str, str]:
    h = comparison.header
    split = f" ({h['split']})" if h["split"] else ""
    return {
        "protocol": visible(h["protocol"]),
        "stride": "" if h["stride"] is None else f"stride {h['stride']}",
        "corpus": "" if h["corpus"] is None else cut(visible(h["corpus"])) + split,
        "context": "" if h["context_length"] is None else f"T = {visible(h['context_length'])}",
        "model": "" if h["model"] is None else f"model {_named(h['model'])}",
        "tokenizer": "" if h["tokenizer"] is None else f"tokenizer {_named(h['tokenizer'])}",
        "tokens": "" if h["tokens"] is None else f"trained on {millions(h['tokens'])} tokens",
    }


def _named(value: object) -> str:
    return cut(visible(value.get("name", as_text(value)) if isinstance(value, dict) else as_text(value)))


def cut(text: str, longest: int = LONGEST_NAME) -> str:
    """Long texts lose their middle."""
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"
