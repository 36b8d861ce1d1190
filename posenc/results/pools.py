"""Pools and members: which measurements of which runs are compared with each other.

A pool holds the measurements of each run that can be compared, by one protocol and of one checkpoint. Members
are made of a pool: a run with those of its measurements that belong together, as trained or with one
extension. What was measured on other text, on other targets or in another precision is never in one row with
the rest. So a run that was measured in several circumstances has one of them in a member, and `rest_of` keeps
the others for further tables.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from posenc.core.run_states import DIVERGED
from posenc.results.curve_bins import with_bins
from posenc.results.measurements import Circumstances, Measurement, Member, measurements_of
from posenc.results.runs import Run

Pool = dict[Path, list[Measurement]]  # by the path of their run

# reasons why records are in no table
OTHER_TARGETS = "of other targets"
OTHER_KNOBS = "with other knobs"
WITHOUT_NUMBER = "of other targets, without a number"
EARLIER = "of earlier checkpoints"
FOR_TUNING = "measured to choose a learning rate or knobs"


# --- pools


def pool_of(runs: Sequence[Run], protocol: str) -> Pool:
    """Return the measurements by `protocol` of the runs that have not diverged.

    The checkpoint is the newest one that was measured on the text.
    """
    pool: Pool = {}
    for run in runs:
        # A diverged run may have records of earlier checkpoints. They would be those of the seed that did
        # well until then.
        if run.facts is None or run.state == DIVERGED:
            continue
        measurements = of_newest_checkpoint(measurements_of(run, protocol))
        if measurements:
            pool[run.path] = measurements
    return pool


def of_newest_checkpoint(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return a run's measurements on each text that are of the newest checkpoint measured on it."""
    newest: dict[tuple[str, str], int] = defaultdict(int)
    for measurement in measurements:
        # By text: an earlier checkpoint that alone was measured on another text keeps its table of that text.
        text = measurement.circumstances.text
        newest[text] = max(newest[text], measurement.step)
    return [
        measurement
        for measurement in measurements
        if measurement.step == newest[measurement.circumstances.text]
    ]


def pool_beside(members: Sequence[Member], protocol: str) -> Pool:
    """Return the measurements of the members' runs by another protocol.

    Text, precision, checkpoint and plant are the same.
    """
    pool: Pool = {}
    for member in members:
        first = member.measurements[0]
        measurements = [
            measurement
            for measurement in measurements_of(member.run, protocol)
            if measurement.step == first.step
            and measurement.precision == first.precision
            and measurement.other_plant == first.other_plant
            and measurement.circumstances.text == first.circumstances.text
        ]
        if measurements:
            pool[member.run.path] = measurements
    return pool


# --- the members of a pool


def members_of(pool: Pool) -> list[Member]:
    """Return a member for each extension of a run, in the circumstances that represent the run best.

    If a run was measured in several, `_preference` says which of them is taken.
    """
    all_measurements: list[Measurement] = []
    for measurements in pool.values():
        all_measurements += measurements
    # Over all runs and not for each by itself, so that the rows of a table were measured in the same
    # circumstances if they can be.
    preferences = {
        circumstances: _preference(circumstances, group)
        for circumstances, group in _by_circumstances(all_measurements).items()
    }
    members: list[Member] = []
    for measurements in pool.values():
        by_circumstances = _by_circumstances(measurements)
        preferred = min(by_circumstances, key=lambda circumstances: preferences[circumstances])
        members += _members_by_extension(by_circumstances[preferred])
    return with_bins(members)


def _by_circumstances(measurements: Iterable[Measurement]) -> dict[Circumstances, list[Measurement]]:
    groups: dict[Circumstances, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        groups[measurement.circumstances].append(measurement)
    return groups


def _preference(circumstances: Circumstances, measurements: Sequence[Measurement]) -> tuple[object, ...]:
    """Return the key by which circumstances are sorted, the preferred ones first.

    `measurements` are all that any run has in these circumstances.
    """
    target_set = circumstances.target_set
    windows = {measurement.window for measurement in measurements}
    runs = {measurement.run.path for measurement in measurements}
    fingerprints_of_trainings = {_trained_fingerprint(measurement.run) for measurement in measurements}
    most_targets = max(measurement.targets for measurement in measurements)
    return (
        target_set.split != "test",  # extensions are tuned on validation documents, and measured there
        most_targets == 0,  # numbers before notes that say why there are none
        -len(runs),  # what most runs share
        target_set.fingerprint not in fingerprints_of_trainings,  # the corpus of a training first
        circumstances.precision is not None,  # the precision of the training first
        circumstances.other_plant is not None,  # the plant of the training first
        -len(windows),
        -max(windows),
        -most_targets,
        circumstances.sort_key,
    )


def _trained_fingerprint(run: Run) -> str | None:
    return None if run.training_text is None else run.training_text["fingerprint"]


def _members_by_extension(measurements: Sequence[Measurement]) -> list[Member]:
    """Return a member for each extension of a run's measurements in the same circumstances."""
    by_extension: dict[str | None, dict[float, Measurement]] = defaultdict(dict)
    for measurement in _of_one_tuning(measurements):
        by_multiple = by_extension[measurement.extension]
        by_multiple.setdefault(measurement.multiple, measurement)  # of several records the first
    # `in` comes first: to read a missing key of a defaultdict adds it, and here that would add a member
    # without measurements.
    crop_line = by_extension[None].get(1.0) if None in by_extension else None
    members = []
    for extension, by_multiple in by_extension.items():
        member = Member(
            run=measurements[0].run,
            extension=extension,
            measurements=tuple(by_multiple.values()),
            by_multiple=by_multiple,
            crop_line=crop_line,
            n_records=len(by_multiple),
        )
        members.append(member)
    return members


def _of_one_tuning(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements of each extension with the knobs that have the most and the longest windows.

    Knobs that were tuned anew on other lengths may differ, and a row made of both would belong to neither.
    """
    if all(measurement.extend is None for measurement in measurements):
        return list(measurements)  # a model as trained has no knobs
    by_knobs: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in measurements:
        # `resolved` has the values at the window, so it differs between the measurements of a row
        parameters = {**(measurement.extend or {}), "resolved": None}
        by_knobs[json.dumps(parameters, sort_keys=True)].append(measurement)

    def preference(knobs_json: str) -> tuple[int, int, str]:
        windows = {measurement.window for measurement in by_knobs[knobs_json]}
        return len(windows), max(windows), knobs_json

    best: dict[str | None, list[Measurement]] = {}
    for knobs_json in sorted(by_knobs, key=preference):
        group = by_knobs[knobs_json]
        best[group[0].extension] = group  # a group that is preferred comes later and replaces it
    return [measurement for group in best.values() for measurement in group]


# --- what the members do not show


def rest_of(pool: Pool, members: Sequence[Member]) -> Pool:
    """Return the measurements that the members do not show, for further tables.

    Three kinds are left out:
    - measurements on validation documents that chose a learning rate, or the knobs of an extension
    - other targets of a text that the members show, if the members have the same windows and extensions
    - other targets of such a text without any number, if the members have the same extensions
    """
    by_run: dict[Path, list[Member]] = defaultdict(list)
    for member in members:
        by_run[member.run.path].append(member)
    rest: Pool = {}
    for path, measurements in pool.items():
        not_shown: list[Measurement] = []
        for circumstances, group in _by_circumstances(measurements).items():
            if not _is_for_tuning(group) and not _is_shown(circumstances, group, by_run[path]):
                not_shown += group
        if not_shown:
            rest[path] = not_shown
    return rest


def _is_for_tuning(measurements: Sequence[Measurement]) -> bool:
    """Tell whether these were measured to choose a learning rate, or the knobs of an extension.

    Rates are chosen by the loss at T, knobs by extended losses. A user who asks for validation documents has
    other windows of the run as trained, too.
    """
    return all(
        measurement.target_set.split != "test"
        and (measurement.extension is not None or measurement.multiple == 1)
        for measurement in measurements
    )


def _is_shown(
    circumstances: Circumstances, measurements: Sequence[Measurement], members: Sequence[Member]
) -> bool:
    """Tell whether members have these numbers, or the same cells of other targets."""
    cells: set[tuple[str | None, float]] = set()  # extension and multiple
    for member in members:
        if member.circumstances == circumstances:
            return True
        # The same windows on other targets of the text say the same again, and a second table would only ask
        # which of the two counts.
        if _differ_in_targets_alone(member.circumstances, circumstances):
            for measurement in (*member.measurements, *member.by_multiple.values()):
                cells.add((member.extension, measurement.multiple))
    # A longer pass of `positions` has other targets than a shorter one. If it ran out of memory, a table of
    # its own would hold nothing but this note.
    if not any(measurement.targets for measurement in measurements):
        extensions = {extension for extension, _ in cells}
        return all(measurement.extension in extensions for measurement in measurements)
    return all((measurement.extension, measurement.multiple) in cells for measurement in measurements)


def _differ_in_targets_alone(first: Circumstances, second: Circumstances) -> bool:
    """Tell whether text, stride, plant and precision are the same."""
    same_text = first.text == second.text
    same_stride = first.target_set.stride == second.target_set.stride
    same_plant = first.other_plant == second.other_plant
    return same_text and same_stride and same_plant and first.precision == second.precision


def left_out_of(
    measurements: Sequence[Measurement], members: Sequence[Member], n_of_earlier_checkpoints: int
) -> Counter[str]:
    """Count the records of a run that none of its members shows, by reason.

    `measurements` are those of the run in the pool, which has its newest checkpoint alone.
    """
    shown_records: Counter[Circumstances] = Counter()
    for member in members:
        shown_records[member.circumstances] += member.n_records
    left_out = Counter({EARLIER: n_of_earlier_checkpoints})
    for circumstances, group in _by_circumstances(measurements).items():
        if circumstances in shown_records:
            left_out[OTHER_KNOBS] += len(group) - shown_records[circumstances]
        else:
            left_out[_reason_to_leave_out(group)] += len(group)
    return +left_out  # without the reasons that no record has


def _reason_to_leave_out(measurements: Sequence[Measurement]) -> str:
    """Return why measurements in circumstances of their own are in no table."""
    if _is_for_tuning(measurements):
        return FOR_TUNING
    has_number = any(measurement.targets for measurement in measurements)
    return OTHER_TARGETS if has_number else WITHOUT_NUMBER
