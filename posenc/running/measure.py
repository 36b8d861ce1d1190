"""Measure cell by cell what is not measured yet: after a training, of a stored run, or of a given model."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from posenc.core.console import say, shown
from posenc.core.errors import RunError
from posenc.data import TokenStore, check_lengths, prepare, vocabulary
from posenc.evaluation import fixed_target
from posenc.evaluation.evaluate import evaluate, plan_cells, protocol_module, tune
from posenc.evaluation.extensions import build_extension
from posenc.evaluation.foreign import Subject
from posenc.evaluation.forward_cache import EvalContext
from posenc.evaluation.key_tokens import stored_keys
from posenc.evaluation.plans import EvalRequest
from posenc.results.load import find_record, spoken_name, write_record
from posenc.results.schema import REFERENCE_PROTOCOL, Record, RunFacts, make_record
from posenc.running import run_directory as folder
from posenc.running.build import Job, run_facts, subject_facts
from posenc.running.eval_job import load_model
from posenc.running.invocation import Invocation
from posenc.running.run_directory import is_held, locked, put_together
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.tracking import TrackedRun, Tracker, build_tracker
from posenc.training.checkpoint import newest_checkpoint
from posenc.training.distributed import current


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its exit code, and the records to show (None: all that are stored)."""

    exit_code: int
    records: list[Record] | None = None


Corpus = tuple[TokenStore, TokenStore | None]  # its tokens, and its bytes where a reference needs them


def run_eval(job: Job, invocation: Invocation) -> Outcome:
    """Measure what is not measured yet and write results.json.

    Every cell of a given model is measured anew, unless something identifies its weights.
    """
    with StopFlag() as stop:
        try:
            measured = _measure_run if job.subject is None else _measure_subject
            return Outcome(0, measured(job, invocation, stop))
        except InterruptedRunError:
            if job.subject is None or job.subject.is_known:
                say(f"{stop.name}: finished cells are stored; the same command continues")
            return Outcome(stop.exit_code)


def _measure_run(job: Job, invocation: Invocation, stop: StopFlag) -> list[Record]:
    trained, corpus = job.settings, tokenised(job)
    held = locked(job.directory, "evaluation", waits=invocation.waits)
    with held, folder.log_file(job.directory):
        stop.guard()
        checkpoint = newest_checkpoint(job.directory / "checkpoints")  # a running training may have moved on
        if checkpoint is None:
            raise RunError(f"the checkpoints of {job.directory} are gone")
        model = load_model(job, checkpoint, vocabulary(trained["data"].get("plant"), corpus[0]))
        # this process did not train it, so its peak is unknown
        facts = run_facts(job, model, checkpoint.state, checkpoint.step, peak_memory_bytes=None)
        records = measure(job, model, corpus, facts, stop, newer=False)
    if job.tracking["name"] != "none" and is_held(job.directory, "run"):  # which sends all at its end
        say("this run is being trained: its own process tells the tracker of these numbers")
    else:
        with tracked(job, trained["experiment_name"]) as tracker:
            tracker.evaluation(folder.records_at(job.directory, checkpoint.step))
    return records


def _measure_subject(job: Job, invocation: Invocation, stop: StopFlag) -> list[Record]:
    corpus, directory, subject = tokenised(job), job.directory, job.subject
    assert subject is not None
    with locked(directory, waits=invocation.waits):
        folder.refuse_links(directory)
        with folder.status_kept(directory, stop):
            folder.write_config(directory, job.settings)
            model = subject.to(job.device).eval()
            records = measure(job, model, corpus, subject_facts(job, subject), stop, newer=True)
        folder.write_status(directory, "finished", step=0)
    return records


@contextmanager
def tracked(job: Job, group: str) -> Iterator[Tracker]:
    """Yield the tracker in the first process, a no-op in the others; end it with the run's status."""
    tracker = Tracker()
    if current().is_first:
        tags = [str(spoken_name(job.settings["encoding"])), job.settings["experiment_name"]]
        run = TrackedRun(job.directory.name, group, tags, job.settings, job.directory)
        tracker = build_tracker(job.tracking, run)
    status = "finished"
    try:
        yield tracker
    except BaseException as error:
        status = getattr(error, "status", "failed")
        raise
    finally:
        tracker.finish(status)


def tokenised(job: Job, context_length: int | None = None) -> Corpus:
    """Return the corpus to measure on, and to train on at `context_length`; UserError if it is too short.

    The bytes that a reference needs come now: hours later the text may be out of reach, or changed.
    """
    group = current()
    store = group.in_turn(lambda: prepare(job.data, job.tokenizer, facts=job.facts))
    longest = max(job.evaluation.windows)
    splits = job.evaluation.splits
    check_lengths(store, splits=splits, needed_tokens=longest + 1, context_length=context_length)
    if "fixed-target" not in job.evaluation.protocols or not job.own_text:
        return store, None
    if store.tokenizer["name"] == "bytes":
        return store, store
    return store, group.in_turn(lambda: prepare(job.data, {"name": "bytes"}, facts=job.facts))


def measure(
    job: Job, model: Subject, corpus: Corpus, facts: RunFacts, stop: StopFlag, *, newer: bool
) -> list[Record]:
    """Return the records of every cell of the plan, and put results.json together.

    With the bytes that it was trained on, fixed-target comes with its reference, the loss of a byte trigram.
    `newer`: these facts win over stored ones of the same step. Raises InterruptedRunError once a stop was
    asked for; finished cells are stored.
    """
    with stop.at_once():
        records = current().first(lambda: _cells(job, model, corpus, facts["steps"], stop))
    put_together(job.directory, facts, newer=newer)
    return records


def _cells(job: Job, model: Subject, texts: Corpus, step: int, stop: StopFlag) -> list[Record]:
    plan, directory, corpus, (store, trained_bytes) = job.evaluation, job.directory, job.data["name"], texts
    subject, request = subject_and_request(job, model, store)
    extension = build_extension(plan.extend, model, tune=bool(plan.tune))
    subject = dataclasses.replace(subject, extension=extension, check_stop=stop.check)
    tries = plan.tune if extension is not None else 0
    cells, done = plan_cells(subject, request, plan.protocols), itertools.count(1)
    with shown("evaluating", len(cells) + tries * len(request.extrapolating)) as bar:

        def on_cell(record: Record, was_there: bool) -> None:
            extended = "" if record["extend"] is None else f"+{record['extend']['name']} "
            split = "" if record["split"] == plan.split else f" on {record['split']} documents"
            text = f"{extended}{record['protocol']} at {record['window']}{split}"
            bar.update(next(done), text + " (stored)" * was_there)

        def evaluated(cells: Any) -> list[Record]:
            return evaluate(cells, directory, corpus=corpus, checkpoint_step=step, on_cell=on_cell)

        if extension is not None and tries:
            chosen, words = tune(subject, request, extension, tries, evaluated)
            say(f"extend={plan.extend['name']}: {words}")
            cells = plan_cells(dataclasses.replace(subject, extension=chosen), request, plan.protocols)
        records = evaluated(cells)
        if trained_bytes is not None:
            records.append(_reference(request, trained_bytes, directory, corpus, step))
    return records


def subject_and_request(job: Job, model: Subject, store: TokenStore) -> tuple[EvalContext, EvalRequest]:
    """Return the model as it is trained, and what its protocols measure."""
    plan, trained = job.evaluation, job.settings["train"]["precision"]
    precision = trained if plan.precision == "auto" else plan.precision
    subject = EvalContext(
        model=model,
        train_length=job.settings["context_length"],
        seed=job.settings["seed"],
        precision=precision,
        recorded_precision=None if precision == trained else precision,
        device=job.device,
        store=store,
        split=plan.split,
        batch_tokens=plan.batch_tokens,
    )
    return subject, request_of(job, store)


def request_of(job: Job, store: TokenStore) -> EvalRequest:
    """Return what the protocols measure."""
    plan = job.evaluation
    return EvalRequest(
        store=store,
        split=plan.split,
        windows=plan.windows,
        train_length=job.settings["context_length"],
        target_fraction=plan.target_fraction,
        max_targets=plan.max_targets,
        stride=plan.stride,
        recall=plan.recall,
        base_length=plan.base_length,
        key_tokens=partial(stored_keys, plan.key_tokens),
        plant=job.data.get("plant"),  # of another corpus none: a model knows the keys of its own
    )


def _reference(
    request: EvalRequest, trained_bytes: TokenStore, directory: Path, corpus: str, step: int
) -> Record:
    """Return the byte trigram's loss on the fixed targets, stored like any cell."""
    plan, store, began = fixed_target.plan(request), request.store, time.monotonic()
    identity: dict[str, Any] = {
        "protocol": REFERENCE_PROTOCOL,
        "window": request.train_length,
        "fingerprint": store.fingerprint,
        "split": request.split,
        "targets_hash": plan.hash,
        "checkpoint_step": step,
    }
    stored = find_record(directory, **identity, extend=None, stride=None)
    if stored is not None:
        return stored
    sums = fixed_target.trigram_sums(trained_bytes, store, request.split, plan)
    record = make_record(
        **identity,
        train_length=request.train_length,
        corpus=corpus,
        seconds=round(time.monotonic() - began, 3),
        **sums.columns(store.splits[request.split]),
    )
    write_record(directory, record)
    return record


def targets_of(job: Job) -> set[tuple[str, str]]:
    """Return the (protocol, hash of its targets) of everything that the job measures."""
    store = prepare(job.data, job.tokenizer, facts=job.facts)
    request = request_of(job, store)
    return {(name, protocol_module(name).plan(request).hash) for name in job.evaluation.protocols}
