"""Recall: how many seeds learned it, what these find within T and beyond, and how far back they find it.

A window holds planted `pairs` of a cue and a value. At its end the cue of one pair comes again, and its value
is asked for. The `distance` of the two places is in tokens. Recall `within` T is the mean over distances in
windows of T.

A seed either learns to recall or does not. So no model is like the mean over all seeds, and if half to four
fifths of the seeds learn, a 95% interval of this mean covers only 72 to 75%. Instead there are two numbers:
how many seeds learned, with a binomial interval, and the mean of what these find, with an interval over them.

Each seed draws its own windows. In records from before posenc 0.2 all seeds have the same 128 windows, which
needs another interval (statistics/proportions.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NotRequired

from annotated_types import MinLen
from pydantic import AfterValidator
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from posenc.core.run_states import DIVERGED
from posenc.results.beside.base import ROUNDING, HasNumbersBeside, NumbersBeside, TableBeside
from posenc.results.cells import shared_or_none
from posenc.results.checks import check_aligned
from posenc.results.measurements import Measurement, Member
from posenc.results.statistics.documents import Count, Number, Positive
from posenc.results.statistics.intervals import CONFIDENCE, Interval, mean_and_spread
from posenc.results.statistics.proportions import (
    clopper_pearson,
    difference_of_shares,
    interval_on_own_windows,
    interval_on_shared_windows,
)

# A share of the row's own recall within T: what a row never found near, it cannot lose far away.
HORIZON_SHARE = 0.5  # the recall horizon is where this share of the accuracy within T is left
SAME_RECALL = 0.1  # a row that finds at most this share less than the best may be tied; it is 100% - LEARNED

Rank = Literal["best", "tied", "unresolved", "below"]
Needs = Literal["seeds", "windows"]


# --- in a record


class RecallCounts(TypedDict):
    """Values recalled in windows of one length, equally long lists; the pairs of the training come first."""

    distance: Annotated[list[Positive], MinLen(1)]  # tokens between the two places of the asked pair
    pairs: list[Positive]  # in each window
    windows: list[Positive]  # with one target each
    correct: list[Count]  # targets that are the first choice
    nats: list[Number]  # mean
    draw: NotRequired[Count]  # of the run's seed; without it all runs were asked in the same 128 windows
    kind: NotRequired[str]  # of the plant, see data.plant.kind; older records do not have it
    choices: NotRequired[Positive]  # values that a pair may have: a guess finds one in so many


def _check(recall: RecallCounts) -> RecallCounts:
    """Return the recall if its lists are equally long. Raises ValueError."""
    check_aligned(recall["distance"], recall["pairs"], recall["windows"], recall["correct"], recall["nats"])
    return recall


RECORD = Annotated[RecallCounts, AfterValidator(_check)]


# --- in a row


@dataclass(frozen=True, order=True)
class Place:
    """The window and the distance at which values are asked for."""

    multiple: float  # of T: the window
    window: int  # tokens
    distance: int | None  # tokens between the two places of the pair; None for the mean over those within T
    pairs: int  # in each window


@dataclass(frozen=True)
class SeedRecall:
    """The share of the planted values that one seed finds at a place."""

    accuracy: float
    nats: float  # per value
    windows: int
    has_fixed_draw: bool  # the windows that all runs from before posenc 0.2 share


@dataclass(frozen=True)
class RecallCell:
    """The values that the seeds of a row find in windows of one length, as shares from 0 to 1.

    Only seeds that learned count, or all of them if none did.
    """

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
    has_fixed_draw: bool  # whether some seed has the windows that all runs from before posenc 0.2 share
    rank: Rank | None = None  # tied: at most 10 points less than the best, with all of the 95% interval
    needs: Needs | None = None  # whether more seeds or more windows would settle what is unresolved

    def interval(self, confidence: float) -> Interval:
        """Return the interval of its accuracy over windows and seeds."""
        interval_of = _interval_function(self.has_fixed_draw)
        return interval_of(self.accuracy, self.windows, self.seeds, self.spread, confidence)


def _interval_function(has_fixed_draw: bool) -> Callable[[float, int, int, float | None, float], Interval]:
    """Return the function that makes the interval of a mean share from share, windows, seeds and spread."""
    return interval_on_shared_windows if has_fixed_draw else interval_on_own_windows


@dataclass(frozen=True)
class Learning:
    """How many seeds of a row learned: they find enough within T, as trained."""

    seeds: int  # seeds with a number within T, and those that diverged
    learned: int  # how many of these learned
    ci95: Interval  # of the probability that a seed learns (Clopper-Pearson, one-sided at 0 and 1)


@dataclass(frozen=True)
class Horizon:
    """The largest distance, in the longest window, with at least half of the accuracy within T."""

    distance: int  # tokens; 0 if no distance has as much
    multiple: float  # the distance / T
    longest: bool  # whether it is the largest distance asked for, so that the true one may be larger


@dataclass(frozen=True)
class RowRecall:
    """The recall of a row."""

    within: RecallCell | None  # in windows of T
    learning: Learning | None  # how many seeds find enough within T; null if that was not measured
    learned: bool | None  # whether any seed learned; null if that was not measured
    beyond: tuple[RecallCell | None, ...]  # in the order of the comparison's multiples
    horizon: Horizon | None  # null for a row that did not learn
    grid: tuple[RecallCell, ...]  # every window, distance and number of pairs
    note: str | None  # how many seeds have no number or did not learn

    @property
    def cells(self) -> tuple[RecallCell | None, ...]:
        """Return the recall within T and in each longer window."""
        return (self.within, *self.beyond)


@dataclass(frozen=True)
class TableRecall:
    """What the recall of all rows of a table has in common: its windows, the level to reach, the plant."""

    level: float  # per cent within T that a seed needs
    multiples: tuple[float, ...]  # of T: windows beyond it, each with its farthest distance
    has_fixed_draw: bool  # whether some record is of the windows that all runs from before posenc 0.2 share
    kind: str | None  # of the plant; null if the records do not say it, or differ in it
    guess: float | None  # per cent that a guess among all values finds; null if it is not the same for all


def _whole_of(table: TableBeside) -> TableRecall | None:
    """Return what the recall of all rows has in common; None if no row has recall."""
    measurements = _measurements_of_recall(table)
    if not measurements:
        return None
    records = [_recorded(measurement) for measurement in measurements]
    choices = shared_or_none(record.get("choices") for record in records)
    return TableRecall(
        level=table.recall_level,
        multiples=_multiples_of(table),
        has_fixed_draw=any(map(_has_fixed_draw, measurements)),
        kind=shared_or_none(record.get("kind") for record in records),
        guess=None if choices is None else 100 / choices,
    )


def _rows_of(table: TableBeside) -> list[RowRecall | None]:
    """Return the recall of each row, ranked if all rows were asked the same questions."""
    multiples = _multiples_of(table)
    recalls = [_recall_of(members, table.recall_level, multiples) for members in table.rows]
    # The hash covers what windows are drawn from and not the draw of one seed, so that all seeds of a table
    # share it.
    hashes = {measurement.target_set.targets_hash for measurement in _measurements_of_recall(table)}
    if len(hashes) == 1:
        are_complete = [_is_complete(members, table.recall_level) for members in table.rows]
        recalls = _ranked(recalls, are_complete)
    return recalls


def _multiples_of(table: TableBeside) -> tuple[float, ...]:
    """Return the windows past T that have a column of recall, as multiples of T."""
    windows = {measurement.multiple for measurement in _measurements_of_recall(table)}
    # Windows that --columns leaves out have no column of recall either. A window in which only recall was
    # measured is not among them, and so it has a column.
    return tuple(sorted(multiple for multiple in windows if multiple > 1 and multiple not in table.left_out))


def _measurements_of_recall(table: TableBeside) -> list[Measurement]:
    """Return the measurements of all rows that have recall."""
    measurements: list[Measurement] = []
    for members in table.rows:
        measurements += _with_recall(members)
    return measurements


def _with_recall(members: Sequence[Member]) -> list[Measurement]:
    """Return the members' measurements that have recall."""
    measurements: list[Measurement] = []
    for member in members:
        for measurement in member.measurements:
            if RECALL.measured(measurement) is not None:
                measurements.append(measurement)
    return measurements


def _farthest_accuracy(recall: RowRecall) -> float | None:
    """Return the accuracy in the longest window; None if it was not measured or no seed learned to recall."""
    if not recall.learned or not recall.beyond:
        return None
    farthest = recall.beyond[-1]
    return None if farthest is None else farthest.accuracy


RECALL: NumbersBeside[RecallCounts, RowRecall, TableRecall] = NumbersBeside(
    protocol="recall",
    rows_of=_rows_of,
    whole_of=_whole_of,
    sort_number=_farthest_accuracy,
    order=10,
)


def learning_of(row: HasNumbersBeside) -> Learning | None:
    """Return how many seeds of a row learned to recall; None where that was not measured."""
    recall = RECALL.of(row)
    return None if recall is None else recall.learning


def did_not_learn_to_recall(row: HasNumbersBeside) -> bool:
    """Tell whether a row has recall, and none of its seeds learned it."""
    recall = RECALL.of(row)
    return recall is not None and recall.learned is False


def farthest_recall_of(row: HasNumbersBeside) -> RecallCell | None:
    """Return the recall of a row in the longest window; None without a number."""
    recall = RECALL.of(row)
    return recall.beyond[-1] if recall is not None and recall.beyond else None


def _recorded(measurement: Measurement) -> RecallCounts:
    """Return the recall of a measurement that has some."""
    recall = RECALL.measured(measurement)
    assert recall is not None
    return recall


def _is_complete(members: Sequence[Member], level: float) -> bool:
    """Tell whether no seed of a row diverged, and of each with numbers it is known whether it learned."""
    if any(map(_diverged, members)):
        return False
    with_numbers = [member for member in members if member.by_multiple]
    # A row must not win because a seed was never asked: that seed may be the one without recall.
    return all(_with_recall([member]) and _has_learned(member, level) is not None for member in with_numbers)


def _diverged(member: Member) -> bool:
    """Tell whether a run diverged, so that it has no numbers."""
    return member.run.state == DIVERGED and not member.by_multiple


def _recall_of(members: Sequence[Member], level: float, multiples: Sequence[float]) -> RowRecall | None:
    """Return the recall of a row; None if none of its seeds has a number."""
    measured_members = [member for member in members if _with_recall([member])]
    if not measured_members:
        return None
    # By the run as trained, also for a row with an extension: whether a seed learned is a fact of its
    # training.
    has_learned = [_has_learned(member, level) for member in measured_members]
    learned_members = [
        member for member, learned in zip(measured_members, has_learned, strict=True) if learned
    ]
    members_of_cells = learned_members or measured_members  # of all seeds, if none learned
    seeds: dict[Place, list[SeedRecall]] = defaultdict(list)
    # More or fewer pairs than in training are another question, and harder or easier. They are in the grid
    # alone.
    trained_pairs = set()
    for measurement in _with_recall(members_of_cells):
        trained_pairs.add(_trained_pairs(measurement))
        for place, seed in _by_place(measurement):
            seeds[place].append(seed)
    grid = tuple(cell_of(place, seeds_of_place) for place, seeds_of_place in sorted(seeds.items()))
    as_in_training = [cell for cell in grid if cell.pairs in trained_pairs]
    # The grid is sorted by distance, so the last cell of a window is that of its farthest distance.
    farthest = {cell.multiple: cell for cell in as_in_training}
    within = _within([member.by_multiple.get(1.0) for member in members_of_cells])
    # A run that diverged did not learn: a row must not look better because its worst seeds have no numbers.
    diverged = sum(map(_diverged, members))
    learning = _learning([*has_learned, *[False] * diverged])
    return RowRecall(
        within=within,
        learning=learning,
        learned=None if learning is None else learning.learned > 0,
        beyond=tuple(farthest.get(multiple) for multiple in multiples),
        horizon=_horizon(as_in_training, within) if learned_members and within else None,
        grid=grid,
        note=_note(members, learning),
    )


def _has_learned(member: Member, level: float) -> bool | None:
    """Tell whether a seed, as trained, finds enough within T; None if that was not measured."""
    # Within T alone. Seeds either learn the task or do not, and a seed that did may still find nothing far
    # away.
    as_trained = _within([member.crop_line])
    return None if as_trained is None else 100 * as_trained.accuracy >= level - ROUNDING


def _learning(has_learned: Sequence[bool | None]) -> Learning | None:
    """Return how many seeds learned, among those of which it is known; None if there are none."""
    seeds = len(has_learned) - has_learned.count(None)
    if seeds == 0:
        return None
    learned = has_learned.count(True)
    return Learning(seeds, learned, clopper_pearson(learned, seeds))


def _trained_pairs(measurement: Measurement) -> int:
    """Return how many pairs a training window has. Questions with as many are stored first."""
    return _recorded(measurement)["pairs"][0]


def _has_fixed_draw(measurement: Measurement) -> bool:
    """Tell whether all runs have the same windows, as in records from before posenc 0.2."""
    return "draw" not in _recorded(measurement)


def _by_place(measurement: Measurement) -> list[tuple[Place, SeedRecall]]:
    """Return the recall of a seed at each distance and number of pairs of a window."""
    recall = _recorded(measurement)
    by_place = []
    for index, distance in enumerate(recall["distance"]):
        place = Place(measurement.multiple, measurement.window, distance, recall["pairs"][index])
        windows = recall["windows"][index]
        accuracy = recall["correct"][index] / windows
        seed = SeedRecall(accuracy, recall["nats"][index], windows, _has_fixed_draw(measurement))
        by_place.append((place, seed))
    return by_place


def cell_of(place: Place, seeds: Sequence[SeedRecall]) -> RecallCell:
    """Return the recall of the seeds of a row at a place, with its interval."""
    accuracy, spread = mean_and_spread([seed.accuracy for seed in seeds])
    nats, _ = mean_and_spread([seed.nats for seed in seeds])
    # Seeds may have been asked in different numbers of windows. The fewest make the interval wider, never
    # narrower.
    windows = min(seed.windows for seed in seeds)
    # One seed of the fixed draw is enough: the interval for shared windows is the wider one, and so the safe
    # one.
    has_fixed_draw = any(seed.has_fixed_draw for seed in seeds)
    interval_of = _interval_function(has_fixed_draw)
    return RecallCell(
        multiple=place.multiple,
        window=place.window,
        distance=place.distance,
        pairs=place.pairs,
        accuracy=accuracy,
        spread=spread,
        ci95=interval_of(accuracy, windows, len(seeds), spread, CONFIDENCE),
        nats=nats,
        windows=windows,
        seeds=len(seeds),
        has_fixed_draw=has_fixed_draw,
    )


def _within(crop_lines: Sequence[Measurement | None]) -> RecallCell | None:
    """Return the mean over distances and seeds in windows of T; None without recall.

    `crop_lines` has the measurement in windows of T of each seed.
    """
    measurements = [
        crop_line
        for crop_line in crop_lines
        if crop_line is not None and RECALL.measured(crop_line) is not None
    ]
    if not measurements:
        return None
    seeds = [_mean_over_distances(measurement) for measurement in measurements]
    last = measurements[-1]
    place = Place(1.0, last.window, distance=None, pairs=_trained_pairs(last))
    return cell_of(place, seeds)


def _mean_over_distances(measurement: Measurement) -> SeedRecall:
    """Return the mean recall of a seed over all distances of a window, with as many pairs as in training."""
    pairs = _trained_pairs(measurement)
    at_distances = [seed for place, seed in _by_place(measurement) if place.pairs == pairs]
    accuracy, _ = mean_and_spread([seed.accuracy for seed in at_distances])
    nats, _ = mean_and_spread([seed.nats for seed in at_distances])
    # All distances are asked for in the same texts, so these are the windows of one distance, not their sum.
    windows = min(seed.windows for seed in at_distances)
    return SeedRecall(accuracy, nats, windows, _has_fixed_draw(measurement))


def _note(members: Sequence[Member], learning: Learning | None) -> str | None:
    """Return how many seeds have no number, and how many did not learn although others did."""
    notes = []
    missing = sum(not _with_recall([member]) and not _diverged(member) for member in members)
    if missing:
        notes.append(f"{missing} of {len(members)} without")
    if learning is not None and 0 < learning.learned < learning.seeds:
        notes.append(f"{learning.seeds - learning.learned} of {learning.seeds} did not learn")
    return ", ".join(notes) or None


def _horizon(cells: Sequence[RecallCell], within: RecallCell) -> Horizon:
    """Return how far back a row finds values. `cells` have as many pairs as in training."""
    longest_window = max(cell.multiple for cell in cells)
    in_longest = [cell for cell in cells if cell.multiple == longest_window]
    least_accuracy = HORIZON_SHARE * within.accuracy
    # The farthest distance counts even if a nearer one falls below: the question is how far a row reaches.
    distance = max((cell.distance or 0 for cell in in_longest if cell.accuracy >= least_accuracy), default=0)
    farthest = max(cell.distance or 0 for cell in in_longest)
    return Horizon(distance, distance / within.window, longest=distance == farthest)


# --- ranks


def _ranked(rows: Sequence[RowRecall | None], are_complete: Sequence[bool]) -> list[RowRecall | None]:
    """Return the rows with their ranks, as far as they are complete.

    Rows are ranked by what their seeds that learned find. No row may win because its worse seeds are missing,
    so a row is not ranked if one of its seeds diverged or was not measured.
    """
    columns = max((len(row.beyond) for row in rows if row is not None), default=0)
    ranked_columns = []
    for column in range(columns):
        rankable_cells = _rankable_cells(rows, are_complete, column)
        ranked_columns.append(_with_ranks(rankable_cells))
    ranked_rows = []
    for index, row in enumerate(rows):
        ranked_rows.append(_with_cells(row, [column.get(index) for column in ranked_columns]))
    return ranked_rows


def _rankable_cells(
    rows: Sequence[RowRecall | None], are_complete: Sequence[bool], column: int
) -> dict[int, RecallCell]:
    """Return the cells of a column that may be ranked, by the index of their row."""
    cells = {}
    for index, row in enumerate(rows):
        if row is None or row.learning is None or not are_complete[index]:
            continue
        cell = row.beyond[column]
        learned = row.learning.learned
        # A row must not win because a seed that learned was not measured in this window.
        if cell is not None and learned > 0 and cell.seeds == learned:
            cells[index] = cell
    return cells


def _with_ranks(cells: dict[int, RecallCell]) -> dict[int, RecallCell]:
    """Return the cells of a column with their ranks; a single cell has none.

    A cell of one seed is ranked only if no cell has several: its interval says nothing of other seeds. The
    interval of a difference is Newcombe's (1998), with its confidence corrected for the rows (Bonferroni).
    """
    most_seeds = max((cell.seeds for cell in cells.values()), default=0)
    if most_seeds > 1:
        cells = {index: cell for index, cell in cells.items() if cell.seeds > 1}
    if len(cells) < 2:
        return cells
    best = max(cells, key=lambda index: cells[index].accuracy)
    # Each row is compared with the best one alone, so there are R - 1 comparisons and not R (R - 1) / 2.
    confidence = 1 - (1 - CONFIDENCE) / (len(cells) - 1)
    ranked = {}
    for index, cell in cells.items():
        rank: Rank = "best" if index == best else _rank(cell, cells[best], confidence)
        needs = _needs(cell, cells[best]) if rank == "unresolved" else None
        ranked[index] = replace(cell, rank=rank, needs=needs)
    return ranked


def _rank(cell: RecallCell, best: RecallCell, confidence: float) -> Rank:
    """Return the rank of a cell that is not the best one."""
    _, high = _difference(cell, best, confidence)
    # Equivalence comes first: a difference that is surely within 10 points is no reason to call a row worse,
    # even if it is surely not 0.
    if high <= SAME_RECALL:
        return "tied"
    return "below" if is_below(cell, best, confidence) else "unresolved"


def is_below(cell: RecallCell, best: RecallCell, confidence: float) -> bool:
    """Tell whether the seeds of a cell find clearly less than those of the best one."""
    low, _ = _difference(cell, best, confidence)
    return low > 0


def _difference(cell: RecallCell, best: RecallCell, confidence: float) -> Interval:
    """Return the interval of how much more the seeds of the best cell find."""
    return difference_of_shares(
        best.accuracy, best.interval(confidence), cell.accuracy, cell.interval(confidence)
    )


def _needs(cell: RecallCell, best: RecallCell) -> Needs:
    """Return which makes the interval too wide, seeds or windows. It is seeds if a row has a single one."""
    # More windows would narrow the interval of this one model, and still say nothing about other seeds.
    if min(cell.seeds, best.seeds) == 1:
        return "seeds"
    # Without a spread the interval is over the windows alone.
    over_windows = [replace(compared, spread=None).interval(CONFIDENCE) for compared in (cell, best)]
    over_both = [compared.ci95 for compared in (cell, best)]
    # The squared widths of both sources add up, so a source with more than half of the sum is the larger one.
    return "windows" if 2 * _sum_of_squares(over_windows) > _sum_of_squares(over_both) else "seeds"


def _sum_of_squares(intervals: Sequence[Interval]) -> float:
    return sum((high - low) ** 2 for low, high in intervals)


def _with_cells(row: RowRecall | None, ranked: Sequence[RecallCell | None]) -> RowRecall | None:
    """Return a row with ranked cells in place of its cells without ranks.

    `ranked` has a cell for each column; None if the row has no rank there.
    """
    if row is None:
        return None
    with_rank: dict[RecallCell | None, RecallCell] = {}  # from cells without a rank to those with one
    for cell, ranked_cell in zip(row.beyond, ranked, strict=True):
        if cell is not None and ranked_cell is not None:
            with_rank[cell] = ranked_cell
    return replace(
        row,
        beyond=tuple(with_rank.get(cell, cell) for cell in row.beyond),
        grid=tuple(with_rank.get(cell, cell) for cell in row.grid),  # the grid has the same cells
    )
