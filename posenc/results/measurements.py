"""The measurements that are compared: records flattened, chosen, and put together by run and extension.

Of each run one protocol, one checkpoint and one set of targets are compared.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
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
    left_out: int = 0  # records of this run and protocol of another checkpoint or set of targets


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


def select(runs: Sequence[Run], protocol: str, steps: Mapping[Path, int] | None = None) -> list[Member]:
    """Return the members of a comparison: the runs with records of `protocol` that have not diverged.

    The checkpoint is the newest one that was measured so, or the step that `steps` has for the run's path.
    Where a run was measured on several sets of targets, one is taken: of the test split, then the set that
    most runs share, then the run's own corpus, the most and the longest windows, the most targets.
    """
    by_run: dict[Path, list[Measurement]] = {}
    counts: dict[Path, int] = {}
    for run in runs:
        if run.facts is None or run.state == "diverged":
            continue
        measured = measurements_of(run, protocol)
        if measured:
            newest = max(measurement.step for measurement in measured)
            step = (steps or {}).get(run.path, newest)
            by_run[run.path] = [measurement for measurement in measured if measurement.step == step]
            counts[run.path] = len(measured)
    preferred = _preferred_targets([one for measured in by_run.values() for one in measured])
    members: list[Member] = []
    for path, measured in by_run.items():
        if measured:
            targets = min((one.target_set for one in measured), key=lambda one: preferred[one])
            same_targets = [one for one in measured if one.target_set == targets]
            members += _members(same_targets, counts[path])
    return _by_bins(members)


def _members(measured: Sequence[Measurement], count: int) -> list[Member]:
    """Return a member for each extension of a run's measurements; `count` records are there in all."""
    by_extension: dict[str | None, dict[float, Measurement]] = {}
    for measurement in _of_one_tuning(measured):
        cells = by_extension.setdefault(measurement.extension, {})
        cells.setdefault(measurement.multiple, measurement)
    run = measured[0].run
    base = by_extension.get(None, {}).get(1.0)
    left_out = count - sum(len(cells) for cells in by_extension.values())
    return [
        Member(run, extension, tuple(cells.values()), cells, base, left_out)
        for extension, cells in by_extension.items()
    ]


def _preferred_targets(measured: Sequence[Measurement]) -> dict[TargetSet, tuple[object, ...]]:
    """Return a sort key for each set of targets; the preferred one sorts first."""
    by_targets: dict[TargetSet, list[Measurement]] = defaultdict(list)
    for measurement in measured:
        by_targets[measurement.target_set].append(measurement)
    return {targets: _preference(targets, group) for targets, group in by_targets.items()}


def _preference(targets: TargetSet, measured: Sequence[Measurement]) -> tuple[object, ...]:
    windows = {measurement.window for measurement in measured}
    trained_on = {measurement.run.path: _trained_fingerprint(measurement.run) for measurement in measured}
    is_foreign = targets.fingerprint not in trained_on.values()
    is_for_tuning = targets.split != "test"  # extensions are tuned on validation documents and measured there
    most_targets = max(measurement.targets for measurement in measured)
    return (
        is_for_tuning,
        -len(trained_on),
        is_foreign,
        -len(windows),
        -max(windows),
        -most_targets,
        targets.order,
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
