"""Measure every protocol at every window. Each finished cell is stored at once and never computed again."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from posenc.evaluation.errors import OUT_OF_MEMORY, NotApplicableError, OutOfMemoryError
from posenc.evaluation.models.callables import CallableModel
from posenc.evaluation.passes import EvalContext
from posenc.evaluation.protocols.base import Protocol
from posenc.evaluation.request import EvalRequest, Plan
from posenc.results.record_files import find_record, write_record
from posenc.results.record_making import DocumentSums, RecordContext, RecordKey, make_record
from posenc.results.records import Record
from posenc.training.device import fit_threads
from posenc.training.memory import keep_freed_memory


@dataclass(frozen=True)
class EvalCell:
    """One number to measure: the loss of a protocol's targets at one window, by the model in `context`."""

    context: EvalContext
    protocol: Protocol[Any]
    plan: Plan
    window: int  # tokens

    @property
    def passes_key(self) -> Hashable:
        """Return what tells its passes from others: cells with equal keys share theirs."""
        # The acting one: where an extension changes nothing, its cell shares the passes of the model as
        # trained.
        return self.context.acting_extension(self.window), self.window, self.plan.passes_key


def cells_with_passes(cells: Sequence[EvalCell], stored: Sequence[bool]) -> Iterator[tuple[EvalCell, bool]]:
    """Yield (cell, makes_passes): False if its record is `stored`, or if an earlier cell makes the same ones.

    A stored cell makes no passes, so that another cell cannot share them.
    """
    keys_so_far: set[Hashable] = set()
    for cell, has_record in zip(cells, stored, strict=True):
        makes_passes = not has_record and cell.passes_key not in keys_so_far
        if makes_passes:
            keys_so_far.add(cell.passes_key)
        yield cell, makes_passes


def plan_cells(
    context: EvalContext, request: EvalRequest, protocols: Sequence[Protocol[Any]]
) -> list[EvalCell]:
    """Plan a cell for every protocol and window.

    With an extension, the first cell of each protocol is the crop line: the model as trained, at W = T.
    """
    cells = []
    for protocol in protocols:
        # A plan serves all windows of its protocol, so that each is scored on the same tokens.
        plan = protocol.plan(request)
        windows = protocol.windows(request.lengths)
        # In published results YaRN without training does no better than a text that is cut to T. Nobody sees
        # that without this line.
        if context.extension is not None and context.context_length in windows:
            as_trained = dataclasses.replace(context, extension=None)
            cells.append(EvalCell(as_trained, protocol, plan, context.context_length))
        cells += [EvalCell(context, protocol, plan, window) for window in windows]
    return cells


def evaluate(
    cells: Sequence[EvalCell],
    run_dir: Path,
    *,
    corpus: str,
    checkpoint_step: int,
    on_begin: Callable[[EvalCell], None] = lambda cell: None,
    on_cell: Callable[[Record, bool], None] = lambda record, was_stored: None,
) -> list[Record]:
    """Return the records of the cells in their order, each written below `run_dir` as it finishes.

    `on_begin(cell)` and `on_cell(record, was_stored)` are called for each. If memory runs out, or the
    encoding refuses a length, the record has a note and no numbers, and the other cells go on. A pass that
    several cells need is made once, and none where the numbers are stored.
    """
    # Saves time: the model nano, in batches of 8192 tokens, takes 0.7 of it at windows of 64, 0.83 at 512.
    keep_freed_memory()
    if cells:
        # The cells share this cache. While knobs are tuned, each candidate is an evaluation of its own, which
        # has no use for the passes of earlier candidates.
        cells[0].context.cache.clear()
    records = []
    for cell in cells:
        on_begin(cell)
        key = record_key(cell, checkpoint_step)
        record = stored_record(cell, run_dir, key)
        is_new = record is None
        if record is None:
            record = record_as_trained(cell, run_dir, checkpoint_step)
        was_stored = record is not None
        if record is None:
            # Before each cell, since other processes come and go. Threads that share a core with them wait in
            # busy loops.
            fit_threads(cell.context.device)
            record = measure_cell(cell, key, corpus)
        if is_new:
            # At once and not at the end, so that an evaluation that is killed loses one cell.
            write_record(run_dir, record)
        records.append(record)
        on_cell(record, was_stored)
    return records


def is_stored(cell: EvalCell, run_dir: Path, checkpoint_step: int) -> bool:
    """Tell whether a record below `run_dir` has the numbers of a cell, so that nothing is measured."""
    key = record_key(cell, checkpoint_step)
    if stored_record(cell, run_dir, key) is not None:
        return True
    return record_as_trained(cell, run_dir, checkpoint_step) is not None


def as_trained_cell(cell: EvalCell) -> EvalCell | None:
    """Return the cell of the model as trained, which has the same numbers if the extension changes nothing.

    None if it changes something, or if there is no extension. `memory` reads shorter windows, too, at which
    nothing changes either (`Extension.effective_encoding`).
    """
    context = cell.context
    if context.extension is None or context.acting_extension(cell.window) is not None:
        return None
    return dataclasses.replace(cell, context=dataclasses.replace(context, extension=None))


def record_as_trained(cell: EvalCell, run_dir: Path, checkpoint_step: int) -> Record | None:
    """Return the record of a cell made of that of the model as trained; None if its numbers are not stored.

    So a sweep over extensions, with `none` among them, measures the windows up to T once and not for each.
    """
    unchanged = as_trained_cell(cell)
    if unchanged is None:
        return None
    record = stored_record(unchanged, run_dir, record_key(unchanged, checkpoint_step))
    if record is None:
        return None
    return cast("Record", {**record, "extend": recorded_extend(cell), "seconds": 0.0})


def stored_record(cell: EvalCell, run_dir: Path, key: RecordKey) -> Record | None:
    """Return the stored record of a cell; None if there is none, or if it must be measured again."""
    record = find_record(run_dir, key)
    if record is None or not still_holds(record, cell):
        return None
    return record


def still_holds(record: Record, cell: EvalCell) -> bool:
    """Tell whether measuring a cell again would surely give its stored record."""
    model = cell.context.model
    if isinstance(model, CallableModel) and not model.has_known_weights:
        return False  # the function may have changed
    ran_out_of_memory = (record["note"] or "").startswith(OUT_OF_MEMORY)
    return not ran_out_of_memory  # there may be more memory now


def record_key(cell: EvalCell, checkpoint_step: int) -> RecordKey:
    """Return the key by which the record of a cell is found again."""
    return RecordKey(
        protocol=cell.protocol.name,
        window=cell.window,
        extend=recorded_extend(cell),
        stride=cell.plan.stride,
        fingerprint=cell.context.store.fingerprint,
        split=cell.context.split,
        targets_hash=cell.plan.hash,
        checkpoint_step=checkpoint_step,
        precision=cell.context.recorded_precision,
    )


def recorded_extend(cell: EvalCell) -> dict[str, Any] | None:
    """Return what identifies the extension: its settings, its revision, and its knobs at this window."""
    extension = cell.context.extension
    if extension is None:
        return None
    recorded = dict(extension.settings)
    # Revision 1 is not written, so that records made before an extension was first revised are found.
    if extension.revision > 1:
        recorded["revision"] = extension.revision
    # `factor: auto` is another number at each window. As these are part of the key, a record that was made by
    # another rule for `auto` is not taken for this one.
    recorded["resolved"] = extension.resolved(cell.window)
    return recorded


def measure_cell(cell: EvalCell, key: RecordKey, corpus: str) -> Record:
    """Measure one cell and return its record, with a note where the cell has no number."""
    context = cell.context
    # Not `time.time`, which jumps when the clock of the machine is set.
    start = time.monotonic()
    document_sums: DocumentSums | None = None
    extra: Mapping[str, Any] = {}
    note = None
    try:
        sums = cell.protocol.measure(context, cell.plan, cell.window)
        document_sums = sums.for_record(context.store.splits[context.split])
        extra = sums.extra
    except (NotApplicableError, OutOfMemoryError) as reason:
        note = str(reason)  # in place of numbers, so that the evaluation goes on with the next cell
    record_context = RecordContext(
        corpus=corpus,
        train_length=context.context_length,
        seconds=round(time.monotonic() - start, 3),
        unit=cell.protocol.unit_of(cell.plan),
        beyond=context.effective_encoding(cell.window).beyond,
    )
    return make_record(key, record_context, document_sums, note=note, extra=extra)
