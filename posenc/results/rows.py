"""Rows of a comparison: the seeds of one encoding and settings, with a cell for each column."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from posenc.results.cells import (
    NOT_MEASURED,
    Cell,
    Column,
    CurveSummary,
    curve_summary,
    make_cell,
    single,
)
from posenc.results.exact import RowExact
from posenc.results.grouping import RowGroup, full_label
from posenc.results.headroom import Recovered
from posenc.results.identity import Conditions
from posenc.results.measurements import Member
from posenc.results.numbers import printed_change
from posenc.results.plain import NOT_IN_JSON
from posenc.results.recall import RowRecall
from posenc.results.records import REFERENCE_PROTOCOL, Metric, Record
from posenc.results.statistics.documents import difference_if_any
from posenc.results.statistics.intervals import Estimate
from posenc.results.statistics.verdicts import REFERENCE


@dataclass(frozen=True, kw_only=True)
class Row:
    """An encoding with one set of settings; its cells are in the order of the columns."""

    label: str  # its name in tables: the encoding, and what tells it from its neighbours
    encoding: str  # its name
    extend: str | None  # the name of a test-time extension
    beyond: str | None  # the declared policy past T
    mixed: dict[str, str]  # what it has of the keys in which the runs differ
    seeds: tuple[int, ...]  # that there are runs of
    runs: tuple[str, ...]  # their directories
    parameters: int | None  # of the whole model
    cells: tuple[Cell, ...]
    notes: tuple[str, ...]  # what is missing, in words
    undertrained: str | None  # by how much its loss at T misses the reference; null where it does not
    curve: CurveSummary | None  # of the protocol `positions`
    recovered: Recovered | None  # where the same encoding was trained at longer windows, too
    recall: RowRecall | None  # of the protocol `recall`
    exact: RowExact | None  # of the protocol `exact`
    members: tuple[Member, ...] = field(metadata=NOT_IN_JSON, repr=False)
    settings: dict[str, str] = field(metadata=NOT_IN_JSON)
    # Not in JSON: how its learning rate was chosen, and where the curves of the only row of a table break.
    tuned: str | None = field(metadata=NOT_IN_JSON)
    breaks: CurveSummary | None = field(metadata=NOT_IN_JSON)
    conditions: Conditions | None = field(metadata=NOT_IN_JSON)
    name: str | None = field(
        default=None, metadata=NOT_IN_JSON
    )  # that the user gives it in text and pictures

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
    recall: RowRecall | None
    exact: RowExact | None
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
        parameters=single(count for count in counts if count is not None),
        cells=tuple(cells),
        notes=(*group.notes, *_notes(group.members)),
        undertrained=extras.undertrained,
        curve=curve_summary(group.members),
        recovered=extras.recovered,
        recall=extras.recall,
        exact=extras.exact,
        members=group.members,
        settings=group.settings,
        tuned=group.tuned,
        breaks=extras.breaks,
        conditions=group.conditions,
    )


# --- notes


def _notes(members: Sequence[Member]) -> list[str]:
    """Return notes on what is missing: runs, training, cells."""
    notes = list(dict.fromkeys(_run_note(member) for member in members if _is_incomplete(member)))
    multiples: dict[str, list[str]] = defaultdict(list)
    for member in members:
        for multiple, measurement in sorted(member.by_multiple.items()):
            if measurement.note:
                multiples[measurement.note].append(f"{multiple:g}x")
    notes += [f"{', '.join(dict.fromkeys(at))}: {note}" for note, at in multiples.items()]
    return notes


def _is_incomplete(member: Member) -> bool:
    return not member.by_multiple or member.run.state != "finished"


def _run_note(member: Member) -> str:
    """Return `seed 2 diverged: nan at step 9`."""
    run = member.run
    state = NOT_MEASURED if run.state == "finished" else run.state
    note = state if run.seed is None else f"seed {run.seed} {state}"
    return f"{note}: {run.reason}" if run.reason else note


# --- undertrained


def undertrained_by(members: Sequence[Member]) -> str | None:
    """Return which seeds' loss at T, as trained, is not clearly below the reference's, and by how much.

    Such a model may extrapolate perfectly, and says nothing about its encoding. Clearly: by 0.1 bits per byte
    with the whole 95% interval over documents (below 10 documents with the difference itself).
    """
    weak: dict[int | None, float] = {}
    for member in members:
        gain = _against_reference(member)
        if gain is not None:
            interval = gain.interval()
            highest = gain.value if interval is None else interval[1]
            if highest >= -REFERENCE:
                weak[member.run.seed] = gain.value
    if not weak:
        return None
    mean = printed_change(math.fsum(weak.values()) / len(weak), "bpb")
    text = f"{mean} bits per byte from the trigram reference"
    if len(weak) > 1:
        text = f"{text} in the mean of {len(weak)} seeds"
    if len(weak) < len(members):
        text = f"seed {', '.join(map(str, weak))}: {text}"
    return text


def _against_reference(member: Member) -> Estimate | None:
    """Return the loss as trained minus the reference's on the same targets, in bits per byte.

    The loss is one that the table shows, or the run's newest one where its targets have no reference.
    """
    if member.run.state == "diverged":
        return None
    plain = [
        record
        for record in member.run.records
        if record["per_document"] is not None and record["extend"] is None
    ]
    references = {_place(record): record for record in plain if record["protocol"] == REFERENCE_PROTOCOL}
    losses = [
        record
        for record in plain
        if record["protocol"] != REFERENCE_PROTOCOL and _place(record) in references
    ]
    if not losses:
        return None
    shown = {
        (one.protocol, one.target_set.targets_hash, one.window, one.step)
        for one in (*member.measurements, member.crop_line)
        if one is not None and one.extend is None
    }

    def preference(record: Record) -> tuple[bool, int]:
        key = (record["protocol"], *_place(record), record["checkpoint_step"])
        return key in shown, record["checkpoint_step"]

    best = max(losses, key=preference)
    loss = best["per_document"]
    reference = references[_place(best)]["per_document"]
    assert loss is not None and reference is not None
    return difference_if_any([(loss, reference)], "bytes")


def _place(record: Record) -> tuple[str, int]:
    return record["targets_hash"], record["window"]
