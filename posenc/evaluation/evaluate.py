"""Every protocol at every window: each finished cell is stored at once and never computed again."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from posenc.evaluation import PROTOCOLS
from posenc.evaluation.passes import Passes
from posenc.evaluation.plans import Asked, Planned, ProtocolModule, windows_of
from posenc.evaluation.subject import NotApplicableError, OutOfMemoryError, Subject, stopped_never
from posenc.results.schema import UNIT, Record, make_record
from posenc.results.store import find_record, write_record
from posenc.training.memory import keep_freed_memory


@dataclass(frozen=True)
class Cell:
    """One number to measure: a protocol's targets at one window, by the model as `subject` has it."""

    subject: Subject
    module: ProtocolModule
    plan: Planned
    window: int  # tokens


def plan_cells(subject: Subject, asked: Asked, protocols: Sequence[str]) -> list[Cell]:
    """All cells, in the order of protocols and windows.

    With an extension each protocol begins with the model as trained at W = T: the crop line, which the
    extended windows are held against.
    """
    cells = []
    for protocol in protocols:
        module = protocol_module(protocol)
        plan = module.plan(asked)
        windows = windows_of(module, asked)
        if subject.extension is not None and subject.train_length in windows:
            cells.append(Cell(as_trained(subject), module, plan, subject.train_length))
        cells += [Cell(subject, module, plan, window) for window in windows]
    return cells


def evaluate(
    cells: Sequence[Cell],
    run_dir: Path,
    *,
    corpus: str,
    checkpoint_step: int,
    on_cell: Callable[[Record, bool], None] = lambda record, was_there: None,
    check_stop: Callable[[], None] = stopped_never,
) -> list[Record]:
    """Records of the cells, in their order, written below `run_dir` as they finish.

    `on_cell(record, was_there)` is told of each. Out of memory, or a length the encoding refuses, makes a
    record without numbers that says so; the other cells go on. A pass that several cells need is made once.
    """
    keep_freed_memory()  # nano, batches of 8192 tokens: 0.7 of the time at 64 tokens, 0.83 at 512
    records, passes = [], Passes()
    for cell in cells:
        cell = dataclasses.replace(cell, subject=dataclasses.replace(cell.subject, passes=passes))
        stored = _stored(cell, run_dir, checkpoint_step)
        record = stored or _measured(cell, run_dir, corpus, checkpoint_step, check_stop)
        if stored is None:
            write_record(run_dir, record)
        records.append(record)
        on_cell(record, stored is not None)
    return records


def protocol_module(protocol: str) -> ProtocolModule:
    """The module of a protocol of PROTOCOLS."""
    module: Any = importlib.import_module(f"posenc.evaluation.{PROTOCOLS[protocol]}")
    return cast(ProtocolModule, module)


def as_trained(subject: Subject) -> Subject:
    """The same without its extension."""
    return dataclasses.replace(subject, extension=None)


def _stored(cell: Cell, run_dir: Path, checkpoint_step: int) -> Record | None:
    subject = cell.subject
    record = find_record(
        run_dir,
        protocol=cell.module.NAME,
        window=cell.window,
        extend=_extend(subject, cell.window),
        stride=getattr(cell.plan, "stride", None),
        fingerprint=subject.store.fingerprint,
        split=subject.split,
        targets_hash=cell.plan.hash,
        checkpoint_step=checkpoint_step,
    )
    if record is not None and (record["note"] or "").startswith("oom"):
        return None  # this machine, or this moment, may have more memory
    return record


def _measured(
    cell: Cell, run_dir: Path, corpus: str, checkpoint_step: int, check_stop: Callable[[], None]
) -> Record:
    subject, window = cell.subject, cell.window
    if subject.extension is not None and subject.extension.acting(window) is subject.model.acting:
        # nothing is extended at this window: one measurement for both
        plain = dataclasses.replace(cell, subject=as_trained(subject))
        record = _stored(plain, run_dir, checkpoint_step)
        if record is None:
            record = _measured(plain, run_dir, corpus, checkpoint_step, check_stop)
            write_record(run_dir, record)
        return cast(Record, {**record, "extend": _extend(subject, window), "seconds": 0.0})
    began = time.monotonic()
    sums, note = None, None
    try:
        sums = cell.module.measure(subject, cell.plan, window, check_stop)
    except (NotApplicableError, OutOfMemoryError) as reason:
        note = str(reason)
    return make_record(
        protocol=cell.module.NAME,
        window=window,
        train_length=subject.train_length,
        checkpoint_step=checkpoint_step,
        corpus=corpus,
        fingerprint=subject.store.fingerprint,
        split=subject.split,
        targets_hash=cell.plan.hash,
        unit=getattr(cell.plan, "unit", getattr(cell.module, "UNIT", UNIT)),
        extend=_extend(subject, window),
        stride=getattr(cell.plan, "stride", None),
        seconds=round(time.monotonic() - began, 3),
        documents=[] if sums is None else sums.documents.tolist(),
        nats=[] if sums is None else sums.nats.tolist(),
        targets=[] if sums is None else sums.targets.tolist(),
        bytes=[] if sums is None else sums.bytes.tolist(),
        beyond=subject.acting(window).beyond,
        note=note,
        curve=None if sums is None else sums.curve,
    )


def _extend(subject: Subject, window: int) -> dict[str, Any] | None:
    """The extension's settings, and what they come to at this window."""
    extension = subject.extension
    if extension is None:
        return None
    revised = {"revision": extension.revision} if extension.revision > 1 else {}
    return {**extension.settings, **revised, "resolved": extension.resolved(window)}
