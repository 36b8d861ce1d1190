"""Measure a reference: the loss on the targets of fixed-target without a model, stored like any cell."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from posenc.evaluation.blocks import Blocks
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.sums import LossSums
from posenc.results.record_files import find_record, write_record
from posenc.results.record_making import RecordContext, RecordKey, make_record
from posenc.results.records import Record


def measure_reference(
    name: str,
    request: EvalRequest,
    plan: Blocks,
    make_sums: Callable[[], LossSums],
    run_dir: Path,
    *,
    corpus: str,
    checkpoint_step: int,
) -> Record:
    """Return the stored record of a reference on a plan's targets, or make and store it.

    `name` is one of posenc.results.records.REFERENCES, and `make_sums` computes its losses.
    """
    store = request.store
    # A reference has no window. It takes that of T, because the loss at T is what is compared with it.
    key = RecordKey(
        protocol=name,
        window=request.lengths.context_length,
        fingerprint=store.fingerprint,
        split=request.split,
        targets_hash=plan.hash,
        checkpoint_step=checkpoint_step,
    )
    # It does not depend on the model, but it is looked up by the step as every record of a run.
    stored = find_record(run_dir, key)
    if stored is not None:
        return stored
    start = time.monotonic()
    sums = make_sums()
    context = RecordContext(
        corpus=corpus,
        train_length=request.lengths.context_length,
        seconds=round(time.monotonic() - start, 3),
    )
    record = make_record(key, context, sums.for_record(store.splits[request.split]))
    write_record(run_dir, record)
    return record
