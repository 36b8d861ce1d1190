"""The measurements that are compared: records flattened, chosen, and put together by run and extension.

Of each run one protocol and one checkpoint are compared. What was measured on other text, on other targets or
in another precision is never in one row with the rest.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError
from posenc.core.run_states import DIVERGED
from posenc.results.beside import keys_beside
from posenc.results.numbers import HUGE, perplexity
from posenc.results.records import Curve, Extend, Metric, Record
from posenc.results.runs import Run
from posenc.results.statistics.documents import PerDocument, Sample
from posenc.results.statistics.intervals import Interval
from posenc.settings.base import earlier_values
from posenc.settings.tree import PlantSettings

RECALL_KEY = "recall"  # of the records that may have asked for another plant than that of the training


@dataclass(frozen=True)
class TargetSet:
    """The identity of the tokens that were scored."""

    fingerprint: str
    split: str
    stride: int | None
    targets_hash: str

    @property
    def sort_key(self) -> tuple[str, str, int, str]:
        """Return a key that sorts sets of targets, always in the same order."""
        return self.fingerprint, self.split, self.stride or 0, self.targets_hash


@dataclass(frozen=True)
class Circumstances:
    """The targets and the precision of a number. Only numbers of the same circumstances are averaged."""

    target_set: TargetSet
    precision: str | None  # None if it is that of the training
    other_plant: str | None  # the kind that recall asked for; None if it is that of the training

    @property
    def text(self) -> tuple[str, str]:
        """Return the corpus and its split."""
        return self.target_set.fingerprint, self.target_set.split

    @property
    def sort_key(self) -> tuple[str, str, tuple[str, str, int, str]]:
        """Return a key that sorts circumstances, always in the same order."""
        return self.precision or "", self.other_plant or "", self.target_set.sort_key


def target_set_of(record: Record) -> TargetSet:
    """Return the set of targets of a record."""
    return TargetSet(record["fingerprint"], record["split"], record["stride"], record["targets_hash"])


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A record of a run, or a bin of its curve, flattened for comparison."""

    run: Run
    protocol: str
    extension: str | None  # as `extension_key` writes it; None for the model as trained
    extend: Extend | None  # the extension as it was recorded
    step: int  # checkpoint
    corpus: str
    target_set: TargetSet
    unit: str
    precision: str | None  # of the measurement; None if it is that of the training
    beyond: str | None  # policy past T
    note: str | None  # why there is no number
    train_length: int  # T, tokens
    multiple: float  # window over T
    window: int  # tokens; for a bin its last position
    nats: float | None  # per token
    bpb: float | None  # bits per byte
    targets: int
    documents: int
    sums: PerDocument | None  # None for a bin, and without a number
    rise: float | None = None  # of a bin: its loss minus the level at T
    rise_ci95: Interval | None = None
    curve: Curve | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)  # what the protocol measured beside the loss

    @functools.cached_property  # measurements are grouped by it again and again
    def circumstances(self) -> Circumstances:
        """Return its targets, its precision and its plant."""
        return Circumstances(self.target_set, self.precision, self.other_plant)

    @property
    def other_plant(self) -> str | None:
        """Return the kind of plant that recall asked for; None if it is that of the training."""
        recall = self.beside.get(RECALL_KEY, {})
        if "kind" not in recall:
            return None
        kind: str = recall["kind"]
        return None if kind == trained_plant(self.run) else kind

    def value(self, metric: Metric) -> float | None:
        """Return the number; None with a note, or without bytes for bpb. An overflowing ppl is infinite."""
        if self.note is not None or self.nats is None:
            return None
        if metric == "bpb":
            return self.bpb
        if metric == "nats":
            return self.nats
        ppl = perplexity(self.nats)
        return ppl if ppl <= HUGE else math.inf


@dataclass(frozen=True)
class Member:
    """A run in a row of a comparison, with its measurements as trained or with one extension."""

    run: Run
    extension: str | None = None
    measurements: tuple[Measurement, ...] = ()  # as stored, a curve whole; empty for a run without numbers
    # by multiple of T; of a curve its bins
    by_multiple: Mapping[float, Measurement] = field(default_factory=dict)
    crop_line: Measurement | None = None  # of the run as trained, in windows of T
    n_records: int = 0  # records behind its numbers

    @property
    def circumstances(self) -> Circumstances:
        """Return the circumstances of its numbers, of which it must have some."""
        return self.measurements[0].circumstances


def measurement_of(run: Run, record: Record) -> Measurement:
    """Return a record of a run, flattened."""
    fields: Mapping[str, object] = record
    return Measurement(
        run=run,
        protocol=record["protocol"],
        extension=extension_key(record["extend"]),
        extend=record["extend"],
        step=record["checkpoint_step"],
        corpus=record["corpus"],
        target_set=target_set_of(record),
        unit=record["unit"],
        precision=record.get("precision"),
        beyond=record["beyond"],
        note=record["note"],
        train_length=round(record["window"] / record["multiple"]),  # a record stores no T itself
        multiple=rounded_multiple(record["multiple"]),
        window=record["window"],
        nats=record["nats"],
        bpb=record["bpb"],
        targets=record["targets"],
        documents=record["documents"],
        sums=record["per_document"],
        curve=record.get("curve"),
        beside={key: fields[key] for key in keys_beside() if key in fields},
    )


def trained_plant(run: Run) -> str | None:
    """Return the kind of plant that a run was trained with; None without one."""
    plant = None if run.facts is None else run.facts.get("corpus", {}).get("plant")
    if plant is None:
        return None
    # Records from before there were two kinds do not name theirs. It is the kind that all runs had then.
    kind: str = plant.get("kind", earlier_values(PlantSettings)["kind"])
    return kind


def measurements_of(run: Run, protocol: str) -> list[Measurement]:
    """Return a run's records of one protocol, flattened."""
    return [measurement_of(run, record) for record in run.records if record["protocol"] == protocol]


def count_records(run: Run, protocol: str) -> int:
    """Return how many records of one protocol a run has."""
    return sum(record["protocol"] == protocol for record in run.records)


def extension_key(extend: Extend | None) -> str | None:
    """Return the extension with its parameters as one comparable text, the same at every window.

    Knobs that were tuned on validation documents are left out: each seed chooses its own.
    """
    if extend is None:
        return None
    not_compared = {"resolved", *extend.get("tuned", [])}  # the values at a window, and tuned knobs
    parameters = {key: value for key, value in extend.items() if key not in not_compared}
    return json.dumps(parameters, sort_keys=True)


def rounded_multiple(multiple: float) -> float:
    """Return a multiple of T, rounded so that it can be a key."""
    # Six digits, since 1/3 comes from several divisions, and a last bit would make a column of its own.
    return round(multiple, 6)


def parse_multiple(text: str, option: str) -> float:
    """Return `16x` as 16.0. Raises UserError."""
    problem = UserError(option, text, "not a multiple of T", allowed="0.5x, 1x, 16x and the like")
    try:
        multiple = float(text.removesuffix("x"))
    except ValueError:
        raise problem from None
    if not (math.isfinite(multiple) and multiple > 0):
        raise problem
    return multiple


def pair_of(measurement: Measurement | None, other: Measurement | None) -> tuple[Sample, Sample] | None:
    """Return the sums by document of both; None if either has none."""
    if measurement is None or other is None or not measurement.sums or not other.sums:
        return None
    return measurement.sums, other.sums


# --- choosing

# The measurements that may be compared, by the path of their run; of each run they are of one checkpoint.
Pool = dict[Path, list[Measurement]]

# reasons why records are in no table
OTHER_TARGETS = "of other targets"
OTHER_KNOBS = "with other knobs"
EARLIER = "of earlier checkpoints"
FOR_TUNING = "measured to choose a learning rate or knobs"


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
        measured = of_newest_checkpoint(measurements_of(run, protocol))
        if measured:
            pool[run.path] = measured
    return pool


def of_newest_checkpoint(measured: Sequence[Measurement]) -> list[Measurement]:
    """Return a run's measurements on each text that are of the newest checkpoint measured on it."""
    newest: dict[tuple[str, str], int] = defaultdict(int)
    for measurement in measured:
        # By text: an earlier checkpoint that alone was measured on another text keeps its table of that text.
        text = measurement.circumstances.text
        newest[text] = max(newest[text], measurement.step)
    return [
        measurement for measurement in measured if measurement.step == newest[measurement.circumstances.text]
    ]


def pool_beside(members: Sequence[Member], protocol: str) -> Pool:
    """Return the measurements of the members' runs by another protocol.

    Text, precision, checkpoint and plant are the same.
    """
    pool: Pool = {}
    for member in members:
        first = member.measurements[0]
        measured = [
            measurement
            for measurement in measurements_of(member.run, protocol)
            if measurement.step == first.step
            and measurement.precision == first.precision
            and measurement.other_plant == first.other_plant
            and measurement.circumstances.text == first.circumstances.text
        ]
        if measured:
            pool[member.run.path] = measured
    return pool


def select(runs: Sequence[Run], protocol: str) -> list[Member]:
    """Return the members of a comparison, in the circumstances that `members_of` prefers for each run."""
    return members_of(pool_of(runs, protocol))


def members_of(pool: Pool) -> list[Member]:
    """Return a member for each extension of a run, in the circumstances that represent the run best.

    If a run was measured in several, `_preference` says which of them is taken.
    """
    all_measured: list[Measurement] = []
    for measured in pool.values():
        all_measured += measured
    # Over all runs and not for each by itself, so that the rows of a table were measured in the same
    # circumstances if they can be.
    preferences = _preferences(all_measured)
    members: list[Member] = []
    for measured in pool.values():
        circumstances = {measurement.circumstances for measurement in measured}
        best = min(circumstances, key=lambda candidate: preferences[candidate])
        members += _members([measurement for measurement in measured if measurement.circumstances == best])
    return _by_bins(members)


def rest_of(pool: Pool, members: Sequence[Member]) -> Pool:
    """Return the measurements that the members do not show, for tables of their own.

    Left out are other targets of a text that is shown, at windows and with extensions that are shown, too,
    and measurements on validation documents that chose the knobs of an extension.
    """
    by_run: dict[Path, list[Member]] = defaultdict(list)
    for member in members:
        by_run[member.run.path].append(member)
    rest: Pool = {}
    for path, measured in pool.items():
        open_measurements: list[Measurement] = []
        for circumstances, group in _by_circumstances(measured).items():
            if not _is_for_tuning(group) and not _is_shown(circumstances, group, by_run[path]):
                open_measurements += group
        if open_measurements:
            rest[path] = open_measurements
    return rest


def _is_for_tuning(measured: Sequence[Measurement]) -> bool:
    """Return whether these were measured to choose a learning rate, or the knobs of an extension.

    Rates are chosen by the loss at T, knobs by extended losses. A user who asks for validation documents has
    other windows of the run as trained, too.
    """
    return all(
        measurement.target_set.split != "test"
        and (measurement.extension is not None or measurement.multiple == 1)
        for measurement in measured
    )


def _is_shown(
    circumstances: Circumstances, measured: Sequence[Measurement], members: Sequence[Member]
) -> bool:
    """Return whether members have these numbers, or the same cells of other targets."""
    cells: set[tuple[str | None, float]] = set()  # extension and multiple
    for member in members:
        if member.circumstances == circumstances:
            return True
        # The same windows on other targets of the text say the same again, and a second table would only ask
        # which of the two counts.
        if _repeats(member.circumstances, circumstances):
            measurements = [*member.measurements, *member.by_multiple.values()]
            cells |= {(member.extension, measurement.multiple) for measurement in measurements}
    return all((measurement.extension, measurement.multiple) in cells for measurement in measured)


def _repeats(first: Circumstances, second: Circumstances) -> bool:
    """Return whether only the targets differ."""
    same_text = first.text == second.text
    same_stride = first.target_set.stride == second.target_set.stride
    same_plant = first.other_plant == second.other_plant
    return same_text and same_stride and same_plant and first.precision == second.precision


def left_out_of(measured: Sequence[Measurement], members: Sequence[Member], earlier: int) -> Counter[str]:
    """Count the records of a run that none of its members shows, by reason.

    `measured` is what the pool has of the run, and `earlier` counts its records of earlier checkpoints.
    """
    shown_records: Counter[Circumstances] = Counter()
    for member in members:
        shown_records[member.circumstances] += member.n_records
    left_out = Counter({EARLIER: earlier})
    for circumstances, group in _by_circumstances(measured).items():
        if circumstances in shown_records:
            left_out[OTHER_KNOBS] += len(group) - shown_records[circumstances]
        else:
            left_out[FOR_TUNING if _is_for_tuning(group) else OTHER_TARGETS] += len(group)
    return +left_out  # without the reasons that no record has


def _by_circumstances(measured: Iterable[Measurement]) -> dict[Circumstances, list[Measurement]]:
    groups: dict[Circumstances, list[Measurement]] = defaultdict(list)
    for measurement in measured:
        groups[measurement.circumstances].append(measurement)
    return groups


def _members(measured: Sequence[Measurement]) -> list[Member]:
    """Return a member for each extension of a run's measurements in the same circumstances."""
    by_extension: dict[str | None, dict[float, Measurement]] = defaultdict(dict)
    for measurement in _of_one_tuning(measured):
        by_multiple = by_extension[measurement.extension]
        by_multiple.setdefault(measurement.multiple, measurement)  # of several records the first
    # `in` comes first: to read a missing key of a defaultdict adds it, and here that would add a member
    # without measurements.
    crop_line = by_extension[None].get(1.0) if None in by_extension else None
    members = []
    for extension, by_multiple in by_extension.items():
        member = Member(
            run=measured[0].run,
            extension=extension,
            measurements=tuple(by_multiple.values()),
            by_multiple=by_multiple,
            crop_line=crop_line,
            n_records=len(by_multiple),
        )
        members.append(member)
    return members


def _preferences(measured: Sequence[Measurement]) -> dict[Circumstances, tuple[object, ...]]:
    """Return a sort key for each of the circumstances; the preferred ones sort first."""
    return {
        circumstances: _preference(circumstances, group)
        for circumstances, group in _by_circumstances(measured).items()
    }


def _preference(circumstances: Circumstances, measured: Sequence[Measurement]) -> tuple[object, ...]:
    """Return the sort key of circumstances, of which `measured` has all measurements."""
    target_set = circumstances.target_set
    windows = {measurement.window for measurement in measured}
    runs = {measurement.run.path for measurement in measured}
    fingerprints_of_trainings = {_trained_fingerprint(measurement.run) for measurement in measured}
    most_targets = max(measurement.targets for measurement in measured)
    return (
        target_set.split != "test",  # extensions are tuned on validation documents, and measured there
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
    return None if run.facts is None else run.facts.get("corpus", {}).get("fingerprint")


def _of_one_tuning(measured: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements of each extension with the knobs that have the most and the longest windows.

    Knobs that were tuned anew on other lengths may differ, and a row made of both would belong to neither.
    """
    if all(measurement.extend is None for measurement in measured):
        return list(measured)  # a model as trained has no knobs
    by_knobs: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in measured:
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


# --- curves


def _by_bins(members: Sequence[Member]) -> list[Member]:
    """Return members with the bins of their curves; members of a protocol without curves as they are.

    A member with a note instead of a curve gets this note in the bins of all others.
    """
    has_curves = any(
        measurement.curve is not None for member in members for measurement in member.measurements
    )
    if not has_curves:
        return list(members)
    curves = [_MemberCurve.of(member) for member in members]
    windows: dict[float, int] = {}  # of all bins, by multiple
    crop_lines: dict[Path, Measurement | None] = {}  # the bin that ends at T of each run as trained
    for curve in curves:
        for multiple, measurement in curve.bins.items():
            windows[multiple] = measurement.window
        if curve.member.extension is None:
            crop_lines[curve.member.run.path] = curve.bins.get(1.0)
    binned = []
    for curve in curves:
        bins = curve.bins
        if curve.longest.curve is None:
            bins = {
                multiple: replace(curve.longest, multiple=multiple, window=window)
                for multiple, window in windows.items()
            }
        binned.append(
            replace(
                curve.member,
                measurements=(curve.longest,),
                by_multiple=bins,
                crop_line=crop_lines.get(curve.member.run.path),
            )
        )
    return binned


@dataclass(frozen=True)
class _MemberCurve:
    """The measurement of a member at its longest window, and the bins of its curve, if it has one."""

    member: Member
    longest: Measurement
    bins: dict[float, Measurement]  # by multiple of T

    @classmethod
    def of(cls, member: Member) -> _MemberCurve:
        longest = member.by_multiple[max(member.by_multiple)]
        return cls(member, longest, _bins(longest))


def _bins(measurement: Measurement) -> dict[float, Measurement]:
    """Return the bins of a curve by multiple of T, each with its rise; none without a curve."""
    curve = measurement.curve
    if curve is None:
        return {}
    bins = {}
    for index, edge in enumerate(curve["edges"][1:]):
        # An edge is where the next bin starts, see `Curve`.
        last_position = edge - 1
        interval = curve["rise_ci95"][index]
        multiple = rounded_multiple(last_position / measurement.train_length)
        bins[multiple] = replace(
            measurement,
            multiple=multiple,
            window=last_position,
            targets=curve["targets"][index],
            nats=curve["nats"][index],
            bpb=None,
            sums=None,
            rise=curve["rise"][index],
            rise_ci95=None if interval is None else (interval[0], interval[1]),
            curve=None,
        )
    return bins
