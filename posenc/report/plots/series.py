"""Prepare what plots show of comparisons: lines by row, short names, and what is missing with its reason."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from posenc.core.errors import UserError, visible
from posenc.report.captions import facts_of, label, length, plural, short_label
from posenc.report.colors import Style, styles_of
from posenc.results.cells import Cell
from posenc.results.comparison import CompareRequest, Comparison, Row, compare_runs
from posenc.results.load import Run, losses_of
from posenc.results.schema import HEADLINE

LONGEST_NAME = 44  # characters
MOST_REASONS = 14  # rows named below a plot
MOST_BANDS = 12  # lines: the bands of more would hide each other
SMOOTHED = 5  # logged steps, of which a point of a training curve is the mean
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

    @property
    def drawn(self) -> bool:
        """Tell whether there is anything to draw."""
        return any(map(math.isfinite, self.y))

    def add(self, x: float, y: float, low: float = NAN, high: float = NAN) -> None:
        """Append a point."""
        self.x.append(x)
        self.y.append(y)
        self.low.append(low)
        self.high.append(high)

    def values(self, start: float = -math.inf) -> list[float]:
        """Return all finite numbers, those of the band too, from `start` on."""
        points = zip(self.x, self.y, self.low, self.high, strict=True)
        return [value for x, *some in points if x >= start for value in some if math.isfinite(value)]


class Names:
    """A short name and a style for each row of the comparisons of a figure."""

    def __init__(self, comparisons: Iterable[Comparison]) -> None:
        rows = {label(row): cut(short_label(row)) for one in comparisons for row in one.rows}
        count = Counter(rows.values())
        self._styles = styles_of(rows)
        self._names = {whole: name if count[name] == 1 else whole for whole, name in rows.items()}

    def of(self, row: Row) -> str:
        """Return what to call a row: its label, without the policy past T where that names one row."""
        return self._names[label(row)]

    def style(self, row: Row) -> Style:
        """Return what it looks like."""
        return self._styles[label(row)]


def cut(text: str, longest: int = LONGEST_NAME) -> str:
    """Escape what cannot be printed, and take the middle out of a long text."""
    text, half = visible(text), (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"


def series_of(comparison: Comparison, names: Names, change: bool = False) -> list[Series]:
    """Return the rows' means by multiple of T, or their changes against T; in the order of the rows.

    The band is the standard deviation over seeds; for one seed the 95% interval over documents of the change
    against T, drawn around the number.
    """
    found = []
    for row in comparison.rows:
        one = Series(names.of(row), names.style(row))
        for column, cell in zip(comparison.columns, row.cells, strict=True):
            one.add(column.multiple, *_point(cell, change))
        found.append(one)
    return found


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


def has_bands(series: Sequence[Series]) -> bool:
    """Tell whether the lines are few enough for bands."""
    return sum(one.drawn for one in series) <= MOST_BANDS


# Words around a plot


def panel_titles(comparisons: Sequence[Comparison]) -> list[str]:
    """Name what sets the comparisons apart; empty for a single one."""
    every = [facts_of(one, ()) for one in comparisons]
    return [cut(", ".join(part for part in own if not all(part in one for one in every))) for own in every]


def source(comparisons: Sequence[Comparison]) -> str:
    """Say what all of them were measured on."""
    every = [facts_of(one, ()) for one in comparisons]
    return ", ".join(cut(part) for part in every[0] if all(part in one for one in every)) + "."


def band_is(comparisons: Sequence[Comparison]) -> str:
    """Say what the bands are."""
    cells = [cell for one in comparisons for row in one.rows for cell in row.cells]
    if counts := sorted({cell.seeds for cell in cells if cell.spread is not None}):
        over = plural(counts[-1], "seed") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
        return f"Bands: standard deviation over {over}."
    return "Bands: 95% CI over documents (1 seed)." if any(cell.change_ci95 for cell in cells) else ""


def missing(comparisons: Sequence[Comparison], names: Names) -> list[str]:
    """Name each row that lacks a number, with the reasons, in one sentence; none where none does."""
    lines: list[str] = []
    for row in (row for one in comparisons for row in one.rows):
        places: dict[str, list[str]] = {}
        for cell in row.cells:
            if cell.note is not None or (cell.mean is not None and not math.isfinite(cell.mean)):
                places.setdefault(cell.note or ">1e30", []).append(length(round(cell.multiple, 3)))
        whole = len(row.cells)  # a reason that holds everywhere needs no places
        reasons = [note if len(at) == whole else f"{', '.join(at)} {note}" for note, at in places.items()]
        if reasons := reasons if row.cells else row.notes:
            lines.append(cut(f"{names.of(row)} {', '.join(reasons)}", 120))
    if len(lines) > MOST_REASONS:
        more = len(lines) - MOST_REASONS + 1
        lines = [*lines[: MOST_REASONS - 1], f"and {more} more rows"]
    return [f"Missing: {'; '.join(lines)}."] if lines else []


# The runs behind a comparison


def runs_of(comparison: Comparison, runs: Sequence[Run]) -> list[Run]:
    """Return those of `runs` that are in its rows."""
    paths = {path for row in comparison.rows for path in row.runs}
    return [run for run in runs if str(run.path) in paths]


def measured(
    kind: str, protocol: str, runs: Sequence[Run], comparisons: Sequence[Comparison]
) -> list[Comparison]:
    """Compare the same runs by another protocol, in nats, where they have it; the same rows.

    Raises UserError where none has.
    """
    found = []
    for one in comparisons:
        members = runs_of(one, runs)
        if (one.header["protocol"], one.header["metric"]) == (protocol, "nats"):
            found.append(one)
        elif any(record["protocol"] == protocol for run in members for record in run.records):
            (other,) = compare_runs(members, CompareRequest(protocol, allow_mixed=True))
            shown = {(row.extend, path) for row in one.rows for path in row.runs}
            other.rows = [row for row in other.rows if any((row.extend, path) in shown for path in row.runs)]
            other.header["group"] = one.header["group"]
            found.append(other)
    if not found:
        hint = f"measure it: posenc eval run=DIR 'eval.protocols=[{HEADLINE},{protocol}]'"
        raise UserError("--plot-kind", kind, f"no run has measured {protocol}", hint=hint)
    return found


def per_bit(comparison: Comparison, runs: Sequence[Run]) -> float | None:
    """Return what one bit per byte is in the comparison's metric; None for perplexities or unknown."""
    metric = comparison.header["metric"]
    if metric != "nats":
        return 1.0 if metric == "bpb" else None
    records = [record for run in runs_of(comparison, runs) for record in run.records]
    ratios = [record["nats"] / record["bpb"] for record in records if record["nats"] and record["bpb"]]
    return statistics.median(ratios) if ratios else None


def training_series(comparison: Comparison, runs: Sequence[Run], names: Names) -> list[Series]:
    """Return the mean training loss of each set of runs (as trained, where rows share them).

    At each number of tokens that all of its runs have logged or passed, with a band where all have logged it.
    """
    logs = {str(run.path): smoothed(losses_of(run)) for run in runs}
    drawn: set[str] = set()
    found = []
    for row in sorted(comparison.rows, key=lambda row: row.extend is not None):
        if set(row.runs) <= drawn:
            continue
        drawn |= set(row.runs)
        one, own = (
            Series(names.of(row), names.style(row)),
            [log for path in row.runs if (log := logs.get(path))],
        )
        for at in sorted({tokens for log in own for tokens in log}):
            here = [log[at] for log in own if at in log]
            if len(here) == len(own) or all(max(log) < at for log in own if at not in log):
                spread = statistics.stdev(here) if len(here) == len(own) > 1 else NAN
                mean = statistics.fmean(here)
                one.add(at, mean, mean - spread, mean + spread)
        found.append(one)
    return found


def smoothed(log: dict[float, float]) -> dict[float, float]:
    """Average SMOOTHED logged losses at the middle one; keep them where there are fewer."""
    steps, half = sorted(log), SMOOTHED // 2
    if len(steps) < SMOOTHED:
        return log
    return {
        steps[i]: statistics.fmean(log[step] for step in steps[i - half : i + half + 1])
        for i in range(half, len(steps) - half)
    }
