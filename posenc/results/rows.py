"""Rows of a comparison: the seeds of one encoding and settings, with a cell for each column."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posenc.core.quantities import length_text
from posenc.core.run_states import DIVERGED, FINISHED
from posenc.results.beside.base import HasNumbersBeside
from posenc.results.cells import (
    NOT_MEASURED,
    Cell,
    Column,
    CurveSummary,
    curve_summary,
    make_cell,
    shared_or_none,
)
from posenc.results.grouping import RowGroup, full_label
from posenc.results.headroom import Recovered
from posenc.results.identity import Conditions
from posenc.results.measurements import Measurement, Member
from posenc.results.numbers import printed_change
from posenc.results.plain import FIELDS_IN_JSON, NOT_IN_JSON
from posenc.results.records import REFERENCES, Metric, Record
from posenc.results.statistics.documents import Sample, difference_if_any
from posenc.results.statistics.intervals import Estimate
from posenc.results.statistics.verdicts import REFERENCE_MARGIN


@dataclass(frozen=True, kw_only=True)
class Row(HasNumbersBeside):
    """An encoding with one set of settings; its cells are in the order of the columns."""

    label: str  # its name in tables: the encoding, and what tells it from its neighbours
    encoding: str  # its name in the catalogue
    extend: str | None  # the name of a test-time extension
    beyond: str | None  # what the encoding declares of positions past T
    mixed: dict[str, str]  # its values of the settings in which rows of a table of --allow-mixed differ
    seeds: tuple[int, ...]
    runs: tuple[str, ...]  # their directories
    parameters: int | None  # of the whole model
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]  # what is missing, in words: runs, the end of a training, numbers
    undertrained: str | None  # by how much its loss at T misses the reference; null where it does not
    curve: CurveSummary | None  # of the protocol `positions`
    recovered: Recovered | None  # where the same encoding was trained at longer windows, too
    # what protocols measured in addition to the loss, each under its key; null where it was not measured
    beside: Mapping[str, Any] = field(metadata=FIELDS_IN_JSON)
    members: tuple[Member, ...] = field(metadata=NOT_IN_JSON, repr=False)
    settings: dict[str, str] = field(metadata=NOT_IN_JSON)
    tuned: str | None = field(metadata=NOT_IN_JSON)  # how its learning rate was chosen
    # as `curve`, but for a table of another protocol with this row alone: its sentence says where losses rise
    breaks: CurveSummary | None = field(metadata=NOT_IN_JSON)
    conditions: Conditions | None = field(metadata=NOT_IN_JSON)
    # the name that a user gives it with --labels, in text and pictures
    name: str | None = field(default=None, metadata=NOT_IN_JSON)

    @property
    def full_label(self) -> str:
        """Return the label, with the conditions that set the row apart in a mixed table."""
        return full_label(self.label, self.mixed)


def cells_of(group: RowGroup, columns: Sequence[Column], metric: Metric) -> list[Cell]:
    """Return a row's cells, not ranked yet."""
    return [make_cell(group.members, column.multiple, metric) for column in columns]


@dataclass(frozen=True)
class RowExtras:
    """The fields of a row that are computed apart from its cells."""

    recovered: Recovered | None
    beside: Mapping[str, Any]
    breaks: CurveSummary | None
    undertrained: str | None


def make_row(group: RowGroup, cells: Sequence[Cell], extras: RowExtras) -> Row:
    """Return the row of a group of runs."""
    counts = [member.run.parameters for member in group.members]
    return Row(
        label=group.label,
        encoding=group.encoding,
        extend=group.extend,
        beyond=group.beyond,
        mixed=group.mixed,
        seeds=group.seeds,
        runs=tuple(str(member.run.path) for member in group.members),
        parameters=shared_or_none(count for count in counts if count is not None),
        cells=tuple(cells),
        notes=(*group.notes, *_notes(group.members)),
        undertrained=extras.undertrained,
        curve=curve_summary(group.members),
        recovered=extras.recovered,
        beside=extras.beside,
        members=group.members,
        settings=group.settings,
        tuned=group.tuned,
        breaks=extras.breaks,
        conditions=group.conditions,
    )


# --- notes


def _notes(members: Sequence[Member]) -> list[str]:
    """Return notes on missing runs, unfinished training, and cells without a number."""
    notes = list(dict.fromkeys(_run_note(member) for member in members if _is_incomplete(member)))
    lengths_by_note: dict[str, list[str]] = defaultdict(list)
    for member in members:
        for multiple, measurement in sorted(member.by_multiple.items()):
            if measurement.note:
                lengths_by_note[measurement.note].append(length_text(multiple))
    for note, lengths in lengths_by_note.items():
        each_length_once = dict.fromkeys(lengths)
        notes.append(f"{', '.join(each_length_once)}: {note}")
    return notes


def _is_incomplete(member: Member) -> bool:
    return not member.by_multiple or member.run.state != FINISHED


def _run_note(member: Member) -> str:
    """Return `seed 2 diverged: nan at step 9`, for a run that did not finish or was not measured."""
    run = member.run
    state = NOT_MEASURED if run.state == FINISHED else run.state
    note = state if run.seed is None else f"seed {run.seed} {state}"
    return f"{note}: {run.reason}" if run.reason else note


# --- undertrained


def undertrained_by(members: Sequence[Member]) -> str | None:
    """Say in words which seeds are undertrained, and by how much; None if no seed is.

    A seed is undertrained unless its loss at T, as trained, is clearly below that of the reference: a byte
    trigram of the training text or, on another text, the frequencies of its tokens. Clearly means that the
    upper end of the 95% interval of the difference, over documents, is below -REFERENCE_MARGIN; if the
    documents are too few for an interval, the difference itself. An undertrained seed may extrapolate well
    and still says nothing about its encoding.
    """
    names: set[str] = set()  # of the references: one, since the rows of a table share their targets
    differences: dict[int | None, float] = {}  # of the undertrained seeds
    for member in members:
        compared = _reference_difference(member)
        if compared is None:
            continue
        # The margin must hold with the whole interval, as for verdicts: a difference that is large on few
        # documents by luck must not pass a model that has learned only how often bytes occur.
        interval = compared.difference.interval()
        highest = compared.difference.value if interval is None else interval[1]
        if highest >= -REFERENCE_MARGIN:
            names.add(compared.reference)
            differences[member.run.seed] = compared.difference.value
    if not differences:
        return None
    mean = printed_change(math.fsum(differences.values()) / len(differences), "bpb")
    text = f"{mean} bits per byte from the {' or '.join(sorted(names))} reference"
    if len(differences) > 1:
        text = f"{text} in the mean of {len(differences)} seeds"
    if len(differences) < len(members):
        text = f"seed {', '.join(map(str, differences))}: {text}"
    return text


@dataclass(frozen=True)
class ReferenceDifference:
    """How far a loss as trained lies from that of a reference on the same targets."""

    reference: str  # one of REFERENCES
    difference: Estimate  # the loss minus that of the reference, in bits per byte


def _reference_difference(member: Member) -> ReferenceDifference | None:
    """Compare the loss as trained with that of the reference on the same targets; None without either.

    If the run has several losses on targets of a reference, take one that the table shows, else the newest.
    """
    # Its records are of checkpoints before it diverged, and its row says that it did.
    if member.run.state == DIVERGED:
        return None
    references: dict[tuple[str, int], Record] = {}
    losses: list[Record] = []
    for record in member.run.records:
        is_as_trained = record["extend"] is None
        if record["per_document"] is None or not is_as_trained:
            continue
        if record["protocol"] in REFERENCES:
            references[_targets_and_window(record)] = record
        else:
            losses.append(record)
    comparable_losses = [record for record in losses if _targets_and_window(record) in references]
    if not comparable_losses:
        return None
    loss = _preferred_loss(member, comparable_losses)
    reference = references[_targets_and_window(loss)]
    loss_sums = loss["per_document"]
    reference_sums = reference["per_document"]
    assert loss_sums is not None and reference_sums is not None
    pair = (Sample.of(loss_sums), Sample.of(reference_sums))
    difference = difference_if_any([pair], "bytes")
    return None if difference is None else ReferenceDifference(reference["protocol"], difference)


def _preferred_loss(member: Member, losses: Sequence[Record]) -> Record:
    """Return the newest of the losses that the table shows; if it shows none of them, the newest of all."""
    # The crop line, the loss as trained in windows of T, is in the table too: changes are against it.
    measurements = [*member.measurements, member.crop_line]
    shown_keys = {
        _key_of_measurement(measurement)
        for measurement in measurements
        if measurement is not None and measurement.extend is None
    }
    shown_losses = [record for record in losses if _key_of_record(record) in shown_keys]
    return max(shown_losses or losses, key=lambda record: record["checkpoint_step"])


@dataclass(frozen=True)
class _LossKey:
    """What tells the losses of a run as trained from one another."""

    protocol: str
    targets_hash: str
    window: int
    step: int
    precision: str | None


def _key_of_measurement(measurement: Measurement) -> _LossKey:
    return _LossKey(
        protocol=measurement.protocol,
        targets_hash=measurement.target_set.targets_hash,
        window=measurement.window,
        step=measurement.step,
        precision=measurement.precision,
    )


def _key_of_record(record: Record) -> _LossKey:
    return _LossKey(
        protocol=record["protocol"],
        targets_hash=record["targets_hash"],
        window=record["window"],
        step=record["checkpoint_step"],
        precision=record.get("precision"),
    )


def _targets_and_window(record: Record) -> tuple[str, int]:
    """Return the hash of a record's targets and its window. Records that agree in both can be compared."""
    return record["targets_hash"], record["window"]
