"""Recall: how many planted values a row finds within T and beyond, and how far back it finds them.

An accuracy is over windows (texts), which are the same at all distances and in all seeds. Its interval is
Wilson's over windows, joined with Student's t over seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from posenc.results.measurements import Measurement, Member
from posenc.results.statistics.intervals import CONFIDENCE, Interval, mean_and_spread
from posenc.results.statistics.proportions import difference_of_shares, wilson_over_seeds

LEVEL = 90.0  # per cent within T: a row below it did not learn to look back, and is not ranked
KEPT = 0.5  # share of the accuracy within T that is left at the recall horizon
SAME_RECALL = 0.1  # as a share: a row as much below the best may be tied; LEVEL forgives as much within T

Rank = Literal["best", "tied", "unresolved", "below"]
Needs = Literal["seeds", "windows"]


@dataclass(frozen=True, order=True)
class Place:
    """The window and the distance at which values are asked for."""

    multiple: float  # of T: the window
    window: int  # tokens
    distance: int | None  # tokens between the two places of the pair; None for the mean over those within T
    pairs: int  # in each window


@dataclass(frozen=True)
class SeedRecall:
    """The recall of one seed at a place."""

    accuracy: float
    nats: float  # per value
    windows: int


@dataclass(frozen=True)
class RecallCell:
    """The values that a row finds in windows of one length; shares from 0 to 1."""

    multiple: float  # of T: the window
    window: int  # tokens
    distance: int | None  # tokens between the two places of the pair; null for the mean over those within T
    pairs: int  # in each window
    accuracy: float  # mean over seeds
    spread: float | None  # standard deviation over seeds; null for one
    ci95: Interval  # over windows and seeds
    nats: float  # per value, mean over seeds
    windows: int  # in each seed
    seeds: int
    rank: Rank | None = None  # tied: at most 10 points less than the best, with all of the 95% interval
    needs: Needs | None = None  # of what more would settle it, if it is unresolved

    def interval(self, confidence: float) -> Interval:
        """Return the interval of its accuracy over windows and seeds."""
        return wilson_over_seeds(self.accuracy, self.windows, self.seeds, self.spread, confidence)


@dataclass(frozen=True)
class Horizon:
    """The largest distance, in the longest window, with at least half of the accuracy within T."""

    distance: int  # tokens; 0 if no distance has
    multiple: float  # the distance / T
    longest: bool  # whether no longer distance was asked for, so that the true one may be larger


@dataclass(frozen=True)
class RowRecall:
    """The recall of a row."""

    within: RecallCell | None  # in windows of T
    learned: bool | None  # whether it finds enough within T, as trained; null if that was not measured
    beyond: tuple[RecallCell | None, ...]  # in the order of the comparison's multiples
    horizon: Horizon | None  # null for a row that did not learn
    grid: tuple[RecallCell, ...]  # every window, distance and number of pairs
    note: str | None  # how many seeds have no number or did not learn

    @property
    def cells(self) -> tuple[RecallCell | None, ...]:
        """Return the recall within T and in each longer window."""
        return (self.within, *self.beyond)


@dataclass(frozen=True)
class RecallColumns:
    """The windows in which the rows of a table recall, and the level that they need."""

    level: float  # per cent within T that a row needs
    multiples: tuple[float, ...]  # of T: windows beyond it, each with its farthest distance


def recall_of_rows(
    rows: Sequence[Sequence[Member]], level: float, hidden: Collection[float] = ()
) -> tuple[RecallColumns | None, list[RowRecall | None]]:
    """Return the columns, None without a number, and the recall of each row.

    A row is given as its members of the protocol `recall`; windows in `hidden` get no column.
    """
    measured: list[Measurement] = []
    for members in rows:
        measured += _with_recall(members)
    windows = {measurement.multiple for measurement in measured}
    multiples = tuple(sorted(multiple for multiple in windows if multiple > 1 and multiple not in hidden))
    recalls = [_recall_of(members, level, multiples) for members in rows]
    if not any(recalls):
        return None, recalls
    hashes = {measurement.target_set.targets_hash for measurement in measured}
    if len(hashes) == 1:  # all rows were asked the same questions
        recalls = _ranked(recalls, [_seeds_that_count(members) for members in rows])
    return RecallColumns(level, multiples), recalls


def _with_recall(members: Sequence[Member]) -> list[Measurement]:
    """Return the measurements that have recall."""
    measured: list[Measurement] = []
    for member in members:
        measured += [measurement for measurement in member.measurements if measurement.recall is not None]
    return measured


def _seeds_that_count(members: Sequence[Member]) -> int:
    """Return how many seeds a cell must have to be ranked: those with numbers and those that diverged."""
    return sum(bool(member.by_multiple) or member.run.state == "diverged" for member in members)


def _recall_of(members: Sequence[Member], level: float, multiples: Sequence[float]) -> RowRecall | None:
    """Return the recall of a row; None without a number."""
    seeds: dict[Place, list[SeedRecall]] = defaultdict(list)
    trained_pairs = set()
    for measurement in _with_recall(members):
        trained_pairs.add(_trained_pairs(measurement))
        for place, seed in _lines(measurement):
            seeds[place].append(seed)
    if not seeds:
        return None
    grid = tuple(cell_of(place, seeds_of_place) for place, seeds_of_place in sorted(seeds.items()))
    as_in_training = [cell for cell in grid if cell.pairs in trained_pairs]
    # the grid rises by distance, so the last cell of a window is that of its farthest distance
    farthest = {cell.multiple: cell for cell in as_in_training}
    within = _within([member.by_multiple.get(1.0) for member in members])
    unextended = _within([member.crop_line for member in members])
    learned = None if unextended is None else _is_enough(unextended, level)
    return RowRecall(
        within=within,
        learned=learned,
        beyond=tuple(farthest.get(multiple) for multiple in multiples),
        horizon=_horizon(as_in_training, within) if learned and within else None,
        grid=grid,
        note=_note(members, level, bool(learned)),
    )


def _trained_pairs(measurement: Measurement) -> int:
    """Return how many pairs a window of the training has, which are asked for first."""
    assert measurement.recall is not None
    return measurement.recall["pairs"][0]


def _lines(measurement: Measurement) -> list[tuple[Place, SeedRecall]]:
    """Return the recall of a seed at each distance of a window."""
    recall = measurement.recall
    if recall is None:
        return []
    lines = []
    for index, distance in enumerate(recall["distance"]):
        place = Place(measurement.multiple, measurement.window, distance, recall["pairs"][index])
        windows = recall["windows"][index]
        accuracy = recall["correct"][index] / windows
        lines.append((place, SeedRecall(accuracy, recall["nats"][index], windows)))
    return lines


def cell_of(place: Place, seeds: Sequence[SeedRecall]) -> RecallCell:
    """Return the recall of the seeds of a row at a place, with its interval."""
    accuracy, spread = mean_and_spread([seed.accuracy for seed in seeds])
    nats, _ = mean_and_spread([seed.nats for seed in seeds])
    windows = min(seed.windows for seed in seeds)
    return RecallCell(
        multiple=place.multiple,
        window=place.window,
        distance=place.distance,
        pairs=place.pairs,
        accuracy=accuracy,
        spread=spread,
        ci95=wilson_over_seeds(accuracy, windows, len(seeds), spread, CONFIDENCE),
        nats=nats,
        windows=windows,
        seeds=len(seeds),
    )


def _within(measured: Sequence[Measurement | None]) -> RecallCell | None:
    """Return the mean over the distances in windows of T, with the training's pairs; None without a number.

    All distances are asked for in the same texts, so the interval is over the windows of one distance.
    """
    seeds: list[SeedRecall] = []
    place: Place | None = None
    for measurement in measured:
        if measurement is None or measurement.recall is None:
            continue
        pairs = _trained_pairs(measurement)
        at_distances = [recall for place, recall in _lines(measurement) if place.pairs == pairs]
        accuracy, _ = mean_and_spread([recall.accuracy for recall in at_distances])
        nats, _ = mean_and_spread([recall.nats for recall in at_distances])
        seeds.append(SeedRecall(accuracy, nats, min(recall.windows for recall in at_distances)))
        place = Place(1.0, measurement.window, None, pairs)
    return None if place is None else cell_of(place, seeds)


def _is_enough(within: RecallCell, level: float) -> bool:
    return 100 * within.accuracy >= level - 1e-9


def _note(members: Sequence[Member], level: float, learned: bool) -> str | None:
    """Return how many seeds have no number, and how many of a row that learned did not learn."""
    notes = []
    missing = sum(not _with_recall([member]) for member in members)
    if missing:
        notes.append(f"{missing} of {len(members)} without")
    by_seed = [_within([member.crop_line]) for member in members]
    weak = sum(cell is not None and not _is_enough(cell, level) for cell in by_seed)
    if weak and learned:
        notes.append(f"{weak} of {len(members)} did not learn")
    return ", ".join(notes) or None


def _horizon(cells: Sequence[RecallCell], within: RecallCell) -> Horizon:
    """Return how far a row looks back; `cells` have the training's pairs."""
    longest_window = max(cell.multiple for cell in cells)
    in_longest = [cell for cell in cells if cell.multiple == longest_window]
    least = KEPT * within.accuracy
    distance = max((cell.distance or 0 for cell in in_longest if cell.accuracy >= least), default=0)
    asked = max(cell.distance or 0 for cell in in_longest)
    return Horizon(distance, distance / within.window, distance == asked)


# --- ranks


def _ranked(rows: Sequence[RowRecall | None], seeds: Sequence[int]) -> list[RowRecall | None]:
    """Return the rows with their ranks; `seeds` is how many seeds a cell of each row needs to be ranked.

    Only cells of all seeds are ranked, in rows that learned: a row must not win by the seeds that survived.
    """
    columns = max((len(row.beyond) for row in rows if row is not None), default=0)
    ranked_columns = [_with_ranks(_ranked_cells(rows, seeds, column)) for column in range(columns)]
    ranked_rows = []
    for index, row in enumerate(rows):
        ranked_rows.append(_with_cells(row, [column.get(index) for column in ranked_columns]))
    return ranked_rows


def _ranked_cells(
    rows: Sequence[RowRecall | None], seeds: Sequence[int], column: int
) -> dict[int, RecallCell]:
    """Return the cells of a column that are ranked, by row."""
    cells = {}
    for index, row in enumerate(rows):
        cell = row.beyond[column] if row is not None and row.learned else None
        if cell is not None and cell.seeds == seeds[index]:
            cells[index] = cell
    return cells


def _with_ranks(cells: dict[int, RecallCell]) -> dict[int, RecallCell]:
    """Return the cells of a column with their ranks; without any if there is a single cell.

    The interval of a difference is Newcombe's (1998), at a confidence that is corrected (Bonferroni) for the
    rows.
    """
    if len(cells) < 2:
        return cells
    best = max(cells, key=lambda index: cells[index].accuracy)
    confidence = 1 - (1 - CONFIDENCE) / (len(cells) - 1)
    ranked = {}
    for index, cell in cells.items():
        rank: Rank = "best" if index == best else _rank(cell, cells[best], confidence)
        needs = _needs(cell, cells[best]) if rank == "unresolved" else None
        ranked[index] = replace(cell, rank=rank, needs=needs)
    return ranked


def _rank(cell: RecallCell, best: RecallCell, confidence: float) -> Rank:
    _, high = _difference(cell, best, confidence)
    if high <= SAME_RECALL:
        return "tied"
    return "below" if is_below(cell, best, confidence) else "unresolved"


def is_below(cell: RecallCell, best: RecallCell, confidence: float) -> bool:
    """Tell whether a cell finds clearly less than the best one."""
    low, _ = _difference(cell, best, confidence)
    return low > 0


def _difference(cell: RecallCell, best: RecallCell, confidence: float) -> Interval:
    """Return the interval of how much more the best one finds."""
    return difference_of_shares(
        best.accuracy, best.interval(confidence), cell.accuracy, cell.interval(confidence)
    )


def _needs(cell: RecallCell, best: RecallCell) -> Needs:
    """Return what is the larger part of an interval that is too wide; seeds if a row has one alone."""
    if min(cell.seeds, best.seeds) == 1:
        return "seeds"
    over_windows = [replace(part, spread=None).interval(CONFIDENCE) for part in (cell, best)]
    over_both = [part.ci95 for part in (cell, best)]
    # Half of the squares: the parts are joined by the root of the sum of squares.
    return "windows" if 2 * _squares(over_windows) > _squares(over_both) else "seeds"


def _squares(intervals: Sequence[Interval]) -> float:
    return sum((high - low) ** 2 for low, high in intervals)


def _with_cells(row: RowRecall | None, ranked: Sequence[RecallCell | None]) -> RowRecall | None:
    """Return a row with the ranked cells of its columns, None where it has no rank."""
    if row is None:
        return None
    by_cell = {
        cell: ranked_cell
        for cell, ranked_cell in zip(row.beyond, ranked, strict=True)
        if cell is not None and ranked_cell is not None
    }
    return replace(
        row,
        beyond=tuple(None if cell is None else by_cell.get(cell, cell) for cell in row.beyond),
        grid=tuple(by_cell.get(cell, cell) for cell in row.grid),  # the grid has the same cells
    )
