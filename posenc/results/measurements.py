"""Measurements: the records of runs, flattened for comparison; and members, the runs of a row with theirs.

Which measurements become members is chosen in pools.py.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from posenc.core.errors import UserError
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

    @functools.cached_property  # a measurement is compared with several others
    def sample(self) -> Sample | None:
        """Return its sums by document as arrays; None without any."""
        return None if self.sums is None else Sample.of(self.sums)

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
    if run.training_text is None or "plant" not in run.training_text:
        return None
    # Records from before there were two kinds do not name theirs. It is the kind that all runs had then.
    earlier_kind: str = earlier_values(PlantSettings)["kind"]
    return run.training_text["plant"].get("kind", earlier_kind)


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
    if measurement is None or other is None or measurement.sample is None or other.sample is None:
        return None
    return measurement.sample, other.sample
