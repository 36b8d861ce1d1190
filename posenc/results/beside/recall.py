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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NotRequired

from annotated_types import MinLen
from pydantic import AfterValidator
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from posenc.core.run_states import DIVERGED
from posenc.results.beside.base import ROUNDING, HasNumbersBeside, NumbersBeside, TableBeside
from posenc.results.beside.recall_cells import (
    Horizon,
    Learning,
    Place,
    RecallCell,
    RowRecall,
    SeedRecall,
    cell_of,
)
from posenc.results.beside.recall_ranks import rank_recall
from posenc.results.cells import shared_or_none
from posenc.results.checks import check_aligned, check_at_most
from posenc.results.measurements import Measurement, Member
from posenc.results.statistics.documents import Count, Number, Positive
from posenc.results.statistics.intervals import mean_and_spread
from posenc.results.statistics.proportions import clopper_pearson

# A share of the row's own recall within T: what a row never found near, it cannot lose far away.
HORIZON_SHARE = 0.5  # the recall horizon is where this share of the accuracy within T is left

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
    """Return the recall if its numbers agree with each other. Raises ValueError."""
    check_aligned(recall["distance"], recall["pairs"], recall["windows"], recall["correct"], recall["nats"])
    check_at_most(recall["correct"], recall["windows"])
    return recall


RECORD = Annotated[RecallCounts, AfterValidator(_check)]


# --- in a row


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
        recalls = rank_recall(recalls, are_complete)
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
    learned_members = [member for member in measured_members if _has_learned(member, level)]
    members_of_cells = learned_members or measured_members  # of all seeds, if none learned
    grid = _grid_of(members_of_cells)
    # More or fewer pairs than in training are another question, and harder or easier. They are in the grid
    # alone.
    trained_pairs = {_trained_pairs(measurement) for measurement in _with_recall(members_of_cells)}
    as_in_training = [cell for cell in grid if cell.place.pairs in trained_pairs]
    # The grid is sorted by distance, so the last cell of a window is that of its farthest distance.
    farthest = {cell.place.multiple: cell for cell in as_in_training}
    within = _within([member.by_multiple.get(1.0) for member in members_of_cells])
    learning = _learning(members, level)
    return RowRecall(
        within=within,
        learning=learning,
        learned=None if learning is None else learning.learned > 0,
        beyond=tuple(farthest.get(multiple) for multiple in multiples),
        horizon=_horizon(as_in_training, within) if learned_members and within else None,
        grid=grid,
        note=_note(members, learning),
    )


def _grid_of(members: Sequence[Member]) -> tuple[RecallCell, ...]:
    """Return the recall of the members at every window, distance and number of pairs, sorted by these."""
    seeds: dict[Place, list[SeedRecall]] = defaultdict(list)
    for measurement in _with_recall(members):
        for place, seed in _by_place(measurement):
            seeds[place].append(seed)
    return tuple(cell_of(place, seeds_of_place) for place, seeds_of_place in sorted(seeds.items()))


def _has_learned(member: Member, level: float) -> bool | None:
    """Tell whether a seed, as trained, finds enough within T; None if that was not measured."""
    # Within T alone. Seeds either learn the task or do not, and a seed that did may still find nothing far
    # away.
    as_trained = _within([member.crop_line])
    return None if as_trained is None else 100 * as_trained.accuracy >= level - ROUNDING


def _learning(members: Sequence[Member], level: float) -> Learning | None:
    """Return how many seeds of a row learned, among those of which it is known; None if there are none."""
    # By the run as trained, also for a row with an extension: whether a seed learned is a fact of its
    # training.
    has_learned = [_has_learned(member, level) for member in members if _with_recall([member])]
    # A run that diverged did not learn: a row must not look better because its worst seeds have no numbers.
    diverged = sum(map(_diverged, members))
    seeds = len(has_learned) - has_learned.count(None) + diverged
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


def _horizon(cells: Sequence[RecallCell], within: RecallCell) -> Horizon | None:
    """Return how far back a row finds values; None if it finds none within T.

    `cells` have as many pairs as in training.
    """
    # With --recall-level 0 such a row counts as one that learned. Half of nothing is found everywhere.
    if within.accuracy == 0:
        return None
    longest_window = max(cell.place.multiple for cell in cells)
    in_longest = [cell for cell in cells if cell.place.multiple == longest_window]
    least_accuracy = HORIZON_SHARE * within.accuracy
    # The farthest distance counts even if a nearer one falls below: the question is how far a row reaches.
    distances_found = [cell.place.distance or 0 for cell in in_longest if cell.accuracy >= least_accuracy]
    distance = max(distances_found, default=0)
    farthest = max(cell.place.distance or 0 for cell in in_longest)
    return Horizon(distance, distance / within.place.window, longest=distance == farthest)
