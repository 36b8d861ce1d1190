"""The measurements that are compared: records flattened, chosen, and put together by run and extension.

Of each run one protocol and one checkpoint are compared. What was measured on other text, on other targets or
in another precision is never in one row with the rest.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from posenc.core.errors import UserError
from posenc.results.numbers import HUGE, perplexity
from posenc.results.records import Curve, Extend, Metric, Recall, Record
from posenc.results.runs import Run
from posenc.results.statistics.documents import PerDocument, Sample
from posenc.results.statistics.intervals import Interval


@dataclass(frozen=True)
class TargetSet:
    """What identifies the tokens that were scored, and how."""

    fingerprint: str
    split: str
    stride: int | None
    targets_hash: str

    @property
    def order(self) -> tuple[str, str, int, str]:
        """A key to sort by."""
        return self.fingerprint, self.split, self.stride or 0, self.targets_hash


@dataclass(frozen=True)
class Circumstances:
    """What a number was measured on and in. The change and the mean of a row are of one of these alone."""

    target_set: TargetSet
    precision: str | None  # None: that of the training

    @property
    def text(self) -> tuple[str, str]:
        """The corpus and the split of it."""
        return self.target_set.fingerprint, self.target_set.split

    @property
    def order(self) -> tuple[str, tuple[str, str, int, str]]:
        """A key to sort by."""
        return self.precision or "", self.target_set.order


def target_set_of(record: Record) -> TargetSet:
    """Return the set of targets that a record is of."""
    return TargetSet(record["fingerprint"], record["split"], record["stride"], record["targets_hash"])


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A record of a run, or a bin of its curve, flattened for comparison."""

    run: Run
    protocol: str
    extension: str | None  # see extension_key; None: as trained
    extend: Extend | None  # the extension as it was recorded
    step: int  # checkpoint
    corpus: str
    target_set: TargetSet
    unit: str
    precision: str | None  # of the measurement, where it is not the training's
    beyond: str | None  # policy past T
    note: str | None  # why there is no number
    train_length: int  # T, tokens
    multiple: float  # of T; of a bin its last position
    window: int  # tokens; of a bin its last position
    nats: float | None  # per token
    bpb: float | None  # bits per byte
    targets: int
    documents: int
    sums: PerDocument | None  # None: there is no number, or it is a bin
    rise: float | None = None  # of a bin, over the level at T
    rise_ci95: Interval | None = None
    curve: Curve | None = None
    recall: Recall | None = None

    @property
    def circumstances(self) -> Circumstances:
        """What it was measured on and in."""
        return Circumstances(self.target_set, self.precision)

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
    recorded: tuple[Measurement, ...] = ()  # as stored, a curve whole; empty for a run without numbers
    at: Mapping[float, Measurement] = field(default_factory=dict)  # by multiple of T; the bins of a curve
    base: Measurement | None = None  # of the run as trained, in windows of T
    records: int = 0  # that it has its numbers from

    @property
    def circumstances(self) -> Circumstances:
        """What its numbers were measured on and in. It must have some."""
        return self.recorded[0].circumstances


def measurement_of(run: Run, record: Record) -> Measurement:
    """Return a record of a run, flattened."""
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
        train_length=round(record["window"] / record["multiple"]),
        multiple=rounded_multiple(record["multiple"]),
        window=record["window"],
        nats=record["nats"],
        bpb=record["bpb"],
        targets=record["targets"],
        documents=record["documents"],
        sums=record["per_document"],
        curve=record.get("curve"),
        recall=record.get("recall"),
    )


def measurements_of(run: Run, protocol: str) -> list[Measurement]:
    """Return a run's records of one protocol, flattened."""
    return [measurement_of(run, record) for record in run.records if record["protocol"] == protocol]


def extension_key(extend: Extend | None) -> str | None:
    """Return the extension with its parameters as one comparable text, the same at every window.

    Knobs that were tuned on validation documents are left out: each seed chooses its own.
    """
    if extend is None:
        return None
    left_out = {"resolved", *extend.get("tuned", [])}
    parameters = {key: value for key, value in extend.items() if key not in left_out}
    return json.dumps(parameters, sort_keys=True)


def rounded_multiple(multiple: float) -> float:
    """Return a multiple of T, rounded so that it can be a key."""
    return round(multiple, 6)


def parse_multiple(text: str, option: str) -> float:
    """Return `16x` as 16.0. Raises UserError."""
    try:
        multiple = float(text.removesuffix("x"))
    except ValueError:
        multiple = math.nan
    if not (math.isfinite(multiple) and multiple > 0):
        raise UserError(option, text, "not a multiple of T", allowed="0.5x, 1x, 16x and the like")
    return multiple


def pairs_of(measurement: Measurement | None, other: Measurement | None) -> list[tuple[Sample, Sample]]:
    """Return the sums by document of both as a pair; an empty list where either has none."""
    if measurement is None or other is None or not measurement.sums or not other.sums:
        return []
    return [(measurement.sums, other.sums)]


# --- choosing

Pool = dict[Path, list[Measurement]]  # what may be compared, by run; of each run one checkpoint
# Why records are in no table.
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
        if run.facts is None or run.state == "diverged":
            continue
        measured = measurements_of(run, protocol)
        newest: dict[tuple[str, str], int] = defaultdict(int)
        for measurement in measured:
            text = measurement.circumstances.text
            newest[text] = max(newest[text], measurement.step)
        chosen = [one for one in measured if one.step == newest[one.circumstances.text]]
        if chosen:
            pool[run.path] = chosen
    return pool


def pool_beside(members: Sequence[Member], protocol: str) -> Pool:
    """Return what the runs of members have of another protocol: same text, precision and checkpoint."""
    pool: Pool = {}
    for member in members:
        first = member.recorded[0]
        measured = [
            one
            for one in measurements_of(member.run, protocol)
            if one.step == first.step
            and one.precision == first.precision
            and one.circumstances.text == first.circumstances.text
        ]
        if measured:
            pool[member.run.path] = measured
    return pool


def select(runs: Sequence[Run], protocol: str) -> list[Member]:
    """Return the members of a comparison: of each run what represents it best. See `members_of`."""
    return members_of(pool_of(runs, protocol))


def members_of(pool: Pool) -> list[Member]:
    """Return a member for each extension of a run, in the circumstances that represent the run best.

    Where a run was measured in several, one is taken: of the test split, then what most runs share, then the
    run's own corpus, the training's precision, the most and the longest windows, the most targets.
    """
    preferred = _preferred([measurement for measured in pool.values() for measurement in measured])
    members: list[Member] = []
    for measured in pool.values():
        best = min((measurement.circumstances for measurement in measured), key=preferred.__getitem__)
        members += _members([measurement for measurement in measured if measurement.circumstances == best])
    return _by_bins(members)


def rest_of(pool: Pool, members: Sequence[Member]) -> Pool:
    """Return what these members neither show nor repeat: it needs a table of its own.

    Other targets of the same text repeat what is shown, unless a window or an extension is among them that is
    not. What was measured on validation documents to choose an extension's knobs is left out.
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
        one.target_set.split != "test" and (one.extension is not None or one.multiple == 1)
        for one in measured
    )


def _is_shown(
    circumstances: Circumstances, measured: Sequence[Measurement], members: Sequence[Member]
) -> bool:
    """Return whether members have these numbers, or the same of other targets."""
    cells: set[tuple[str | None, float]] = set()
    for member in members:
        if member.circumstances == circumstances:
            return True
        if _repeats(member.circumstances, circumstances):
            cells |= {(member.extension, one.multiple) for one in (*member.recorded, *member.at.values())}
    return all((one.extension, one.multiple) in cells for one in measured)


def _repeats(first: Circumstances, second: Circumstances) -> bool:
    """Return whether nothing but the targets differs."""
    same_text = first.text == second.text
    same_stride = first.target_set.stride == second.target_set.stride
    return same_text and same_stride and first.precision == second.precision


def left_out_of(run: Run, protocol: str, members: Sequence[Member]) -> Counter[str]:
    """Return how many records of a run none of its members shows, by the reason."""
    measured = pool_of([run], protocol).get(run.path, [])
    shown: Counter[Circumstances] = Counter()
    for member in members:
        shown[member.circumstances] += member.records
    left_out: Counter[str] = Counter()
    left_out[EARLIER] = len(measurements_of(run, protocol)) - len(measured)
    for circumstances, group in _by_circumstances(measured).items():
        if circumstances in shown:
            left_out[OTHER_KNOBS] += len(group) - shown[circumstances]
        else:
            left_out[FOR_TUNING if _is_for_tuning(group) else OTHER_TARGETS] += len(group)
    return +left_out


def _by_circumstances(measured: Iterable[Measurement]) -> dict[Circumstances, list[Measurement]]:
    groups: dict[Circumstances, list[Measurement]] = defaultdict(list)
    for measurement in measured:
        groups[measurement.circumstances].append(measurement)
    return groups


def _members(measured: Sequence[Measurement]) -> list[Member]:
    """Return a member for each extension of a run's measurements in the same circumstances."""
    by_extension: dict[str | None, dict[float, Measurement]] = {}
    for measurement in _of_one_tuning(measured):
        cells = by_extension.setdefault(measurement.extension, {})
        cells.setdefault(measurement.multiple, measurement)
    run = measured[0].run
    base = by_extension.get(None, {}).get(1.0)
    return [
        Member(run, extension, tuple(cells.values()), cells, base, len(cells))
        for extension, cells in by_extension.items()
    ]


def _preferred(measured: Sequence[Measurement]) -> dict[Circumstances, tuple[object, ...]]:
    """Return a sort key for each of the circumstances; the preferred ones sort first."""
    return {
        circumstances: _preference(circumstances, group)
        for circumstances, group in _by_circumstances(measured).items()
    }


def _preference(circumstances: Circumstances, measured: Sequence[Measurement]) -> tuple[object, ...]:
    target_set = circumstances.target_set
    windows = {measurement.window for measurement in measured}
    trained_on = {measurement.run.path: _trained_fingerprint(measurement.run) for measurement in measured}
    is_foreign = target_set.fingerprint not in trained_on.values()
    is_for_tuning = (
        target_set.split != "test"
    )  # extensions are tuned on validation documents and measured there
    most_targets = max(measurement.targets for measurement in measured)
    return (
        is_for_tuning,
        -len(trained_on),
        is_foreign,
        circumstances.precision is not None,
        -len(windows),
        -max(windows),
        -most_targets,
        circumstances.order,
    )


def _trained_fingerprint(run: Run) -> str | None:
    return None if run.facts is None else run.facts.get("corpus", {}).get("fingerprint")


def _of_one_tuning(measured: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements of each extension with the knobs that have the most and the longest windows.

    Knobs that were tuned anew on other lengths may differ, and a row made of both would belong to neither.
    """
    by_knobs: dict[str, list[Measurement]] = defaultdict(list)
    for measurement in measured:
        parameters = {**(measurement.extend or {}), "resolved": None}
        by_knobs[json.dumps(parameters, sort_keys=True)].append(measurement)

    def preference(knobs: str) -> tuple[int, int, str]:
        windows = {measurement.window for measurement in by_knobs[knobs]}
        return len(windows), max(windows), knobs

    best: dict[str | None, list[Measurement]] = {}
    for knobs in sorted(by_knobs, key=preference):
        group = by_knobs[knobs]
        best[group[0].extension] = group  # the last one, which is preferred, stays
    return [measurement for group in best.values() for measurement in group]


# --- curves


def _by_bins(members: Sequence[Member]) -> list[Member]:
    """Return the members with the bins of their curves; those of a protocol without curves as they are.

    A member without a curve beside others with one has its note in each of their bins.
    """
    if not any(one.curve is not None for member in members for one in member.recorded):
        return list(members)
    longest = [member.at[max(member.at)] for member in members]
    bins = [_bins(measurement) for measurement in longest]
    windows = {multiple: one.window for cells in bins for multiple, one in cells.items()}
    bases = {
        member.run.path: cells.get(1.0)
        for member, cells in zip(members, bins, strict=True)
        if member.extension is None
    }
    binned = []
    for member, measurement, cells in zip(members, longest, bins, strict=True):
        at = cells
        if measurement.curve is None:
            at = {
                multiple: replace(measurement, multiple=multiple, window=window)
                for multiple, window in windows.items()
            }
        base = bases.get(member.run.path)
        binned.append(replace(member, recorded=(measurement,), at=at, base=base))
    return binned


def _bins(measurement: Measurement) -> dict[float, Measurement]:
    """Return the bins of a curve by multiple of T, each with its rise; none without a curve."""
    curve = measurement.curve
    if curve is None:
        return {}
    bins = {}
    for index, end in enumerate(curve["edges"][1:]):
        interval = curve["rise_ci95"][index]
        multiple = rounded_multiple((end - 1) / measurement.train_length)
        bins[multiple] = replace(
            measurement,
            multiple=multiple,
            window=end - 1,
            targets=curve["targets"][index],
            nats=curve["nats"][index],
            bpb=None,
            sums=None,
            rise=curve["rise"][index],
            rise_ci95=None if interval is None else (interval[0], interval[1]),
            curve=None,
        )
    return bins
