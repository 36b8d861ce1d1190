"""Every protocol at every window: each finished cell is stored at once and never computed again."""

from __future__ import annotations

import hashlib
import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from posenc.evaluation import PROTOCOLS
from posenc.evaluation.subject import NotApplicableError, OutOfMemoryError, Subject, stopped_never
from posenc.results.records import Record, make_record
from posenc.results.store import find_record, write_record


def evaluate(
    subject: Subject,
    run_dir: Path,
    *,
    protocols: Sequence[str],
    windows: Sequence[int],
    target_fraction: float,
    max_targets: int,
    corpus: str,
    checkpoint_step: int,
    on_cell: Callable[[Record, bool], None],
    check_stop: Callable[[], None] = stopped_never,
) -> list[Record]:
    """Records of all cells (protocol, window), in that order, written below `run_dir` as they finish.

    The longest window decides which documents can be targets, so it is part of what identifies a cell.
    `on_cell(record, was_there)` is told of each. Out of memory, or a length the encoding refuses, makes a
    record without numbers that says so; the other cells go on.
    """
    split = subject.store.splits[subject.split]
    # what a token is belongs to what a target is
    identity = f"{subject.store.fingerprint} {subject.split} {_digest(subject.store.tokenizer)}"
    records = []
    for protocol in protocols:
        module = importlib.import_module(f"posenc.evaluation.{PROTOCOLS[protocol]}")
        plan = module.plan(
            split.lengths,
            windows,
            train_length=subject.train_length,
            target_fraction=target_fraction,
            max_targets=max_targets,
            identity=identity,
        )
        for window in windows:
            stored = find_record(
                run_dir,
                protocol=protocol,
                window=window,
                extend=None,
                stride=None,
                fingerprint=subject.store.fingerprint,
                split=subject.split,
                targets_hash=plan.hash,
                checkpoint_step=checkpoint_step,
            )
            if stored is not None and (stored["note"] or "").startswith("oom"):
                stored = None  # this machine, or this moment, may have more memory
            record = stored or _measured(
                subject, module, plan, window, protocol, corpus, checkpoint_step, check_stop
            )
            if stored is None:
                write_record(run_dir, record)
            records.append(record)
            on_cell(record, stored is not None)
    return records


def _measured(
    subject: Subject,
    module: object,
    plan: object,
    window: int,
    protocol: str,
    corpus: str,
    checkpoint_step: int,
    check_stop: Callable[[], None],
) -> Record:
    began = time.monotonic()
    sums, note = None, None
    try:
        sums = module.measure(subject, plan, window, check_stop)  # type: ignore[attr-defined]
    except (NotApplicableError, OutOfMemoryError) as reason:
        note = str(reason)
    return make_record(
        protocol=protocol,
        window=window,
        train_length=subject.train_length,
        checkpoint_step=checkpoint_step,
        corpus=corpus,
        fingerprint=subject.store.fingerprint,
        split=subject.split,
        targets_hash=plan.hash,  # type: ignore[attr-defined]
        seconds=round(time.monotonic() - began, 3),
        documents=[] if sums is None else sums.documents.tolist(),
        nats=[] if sums is None else sums.nats.tolist(),
        targets=[] if sums is None else sums.targets.tolist(),
        bytes=[] if sums is None else sums.bytes.tolist(),
        beyond=subject.model.encoding.beyond,
        note=note,
    )


def _digest(identity: object) -> str:
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
