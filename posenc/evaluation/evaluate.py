"""Measure every protocol at every window: each finished cell is stored at once and never computed again."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from posenc.core.errors import UserError
from posenc.evaluation import PROTOCOLS
from posenc.evaluation.extensions import Extension, build_extension
from posenc.evaluation.foreign import Foreign
from posenc.evaluation.forward_cache import EvalContext, NotApplicableError, OutOfMemoryError
from posenc.evaluation.plans import EvalRequest, windows_of
from posenc.results.load import find_record, write_record
from posenc.results.schema import UNIT, Record, make_record
from posenc.training.device import fit_threads, keep_freed_memory

# To choose an extension's knobs: on these documents, never on those that are reported.
TARGETS = 8000  # validation targets for each candidate and length
SPLIT = "validation"


@dataclass(frozen=True)
class Cell:
    """One number to measure: a protocol's targets at one window, by the model in `context`."""

    context: EvalContext
    module: ModuleType
    plan: Any  # what module.plan(request) gave
    window: int  # tokens


def plan_cells(context: EvalContext, request: EvalRequest, protocols: Sequence[str]) -> list[Cell]:
    """Plan all cells; with an extension each protocol begins with the crop line, as trained at W = T."""
    cells = []
    for protocol in protocols:
        module = protocol_module(protocol)
        plan = module.plan(request)
        windows = windows_of(module, request)
        if context.extension is not None and context.train_length in windows:
            plain = dataclasses.replace(context, extension=None)
            cells.append(Cell(plain, module, plan, context.train_length))
        cells += [Cell(context, module, plan, window) for window in windows]
    return cells


def evaluate(
    cells: Sequence[Cell],
    run_dir: Path,
    *,
    corpus: str,
    checkpoint_step: int,
    on_cell: Callable[[Record, bool], None] = lambda record, was_there: None,
) -> list[Record]:
    """Return the records of the cells, in their order, written below `run_dir` as they finish.

    `on_cell(record, was_there)` is called for each. Out of memory, or a length the encoding refuses, makes a
    record with a note and no numbers; the other cells go on. A pass that several cells need is made once.
    """
    keep_freed_memory()  # nano, batches of 8192 tokens: 0.7 of the time at 64 tokens, 0.83 at 512
    records = []
    if cells:
        cells[0].context.cache.clear()  # which all share
    for cell in cells:
        identity = _identity(cell, checkpoint_step)
        record = find_record(run_dir, **identity)
        # there may be more memory now
        is_stored = (
            record is not None
            # of any other model nothing says whether it is still the same
            and (not isinstance(cell.context.model, Foreign) or cell.context.model.is_known)
            and not (record["note"] or "").startswith("oom")
            and record.get("precision") == cell.context.recorded_precision
        )
        if record is None or not is_stored:
            fit_threads(cell.context.device)
            record = _measured(cell, identity, corpus)
            write_record(run_dir, record)
        records.append(record)
        on_cell(record, is_stored)
    return records


def protocol_module(protocol: str) -> ModuleType:
    """Import the module of a protocol of PROTOCOLS."""
    return importlib.import_module(f"posenc.evaluation.{PROTOCOLS[protocol]}")


def _identity(cell: Cell, checkpoint_step: int) -> dict[str, Any]:
    """Return the fields of a record by which it is found again."""
    context, extension, extend = cell.context, cell.context.extension, None
    if extension is not None:
        revision = {"revision": extension.revision} if extension.revision > 1 else {}
        extend = {**extension.settings, **revision, "resolved": extension.resolved(cell.window)}
    return {
        "protocol": cell.module.NAME,
        "window": cell.window,
        "extend": extend,
        "stride": getattr(cell.plan, "stride", None),
        "fingerprint": context.store.fingerprint,
        "split": context.split,
        "targets_hash": cell.plan.hash,
        "checkpoint_step": checkpoint_step,
    }


def _measured(cell: Cell, identity: dict[str, Any], corpus: str) -> Record:
    context, start = cell.context, time.monotonic()
    sums, note = {}, None
    try:
        measured = cell.module.measure(context, cell.plan, cell.window)
        sums = measured.columns(context.store.splits[context.split])
    except (NotApplicableError, OutOfMemoryError) as reason:
        note = str(reason)
    return make_record(
        **identity,
        train_length=context.train_length,
        corpus=corpus,
        unit=getattr(cell.plan, "unit", getattr(cell.module, "UNIT", UNIT)),
        seconds=round(time.monotonic() - start, 3),
        beyond=context.effective_encoding(cell.window).beyond,
        precision=context.recorded_precision,
        note=note,
        **sums,
    )


def tune(
    context: EvalContext,
    request: EvalRequest,
    extension: Extension,
    tries: int,
    evaluated: Callable[[Sequence[Cell]], list[Record]],
) -> tuple[Extension, str]:
    """Return the candidate of lowest fixed-target loss beyond T on validation documents, and it in words.

    At most `tries` are measured. One without a number somewhere is never chosen; where none has one, the
    extension is returned as it is, and where it has no knob to choose too.
    """
    validation = dataclasses.replace(request, split=SPLIT, max_targets=min(TARGETS, request.max_targets))

    def loss_of(candidate: Extension) -> float:
        on_validation = dataclasses.replace(context, extension=candidate, split=SPLIT)
        cells = plan_cells(on_validation, validation, ["fixed-target"])
        beyond = [c for c in cells if c.context.extension is not None and c.window in request.extrapolating]
        nats = [record["nats"] for record in evaluated(beyond)]
        return math.inf if None in nats else sum(n for n in nats if n is not None)

    search, tried = extension.search(max(request.windows)), list[tuple[float, Extension]]()
    with contextlib.suppress(StopIteration):
        knobs = next(search)
        while len(tried) < tries:
            loss = math.inf
            with contextlib.suppress(UserError):  # a value that this model does not take
                candidate = build_extension({**extension.settings, **knobs}, context.model)
                assert candidate is not None
                loss = loss_of(candidate)
                tried.append((loss, candidate))
            knobs = search.send(loss)
    if not tried:
        return extension, "no knob to choose, measured as it is"
    loss, best = min(tried, key=lambda one: one[0])
    if not math.isfinite(loss):
        return extension, f"none of {len(tried)} candidates has a number, knobs as given"
    given = extension.settings
    tuned = sorted(k for k in given if any(one.settings[k] != tried[0][1].settings[k] for _, one in tried))
    best.settings = {**best.settings, "tuned_on": SPLIT, "tuned": tuned}
    knobs_found = ", ".join(f"{key}={best.settings[key]}" for key in tuned)
    return best, f"{knobs_found}, the best of {len(tried)} on validation documents"
