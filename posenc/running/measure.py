"""Measure a model on all cells of a plan, for `train` and `eval`: show progress, store cells, stop."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from posenc.config.checks import EvalPlan
from posenc.core.console import say, shown
from posenc.data import CorpusFacts, TokenStore, check_lengths, prepare
from posenc.evaluation import fixed_target, trigram
from posenc.evaluation.evaluate import evaluate, plan_cells
from posenc.evaluation.extensions import build_extension
from posenc.evaluation.forward_cache import EvalContext
from posenc.evaluation.key_tokens import stored_keys
from posenc.evaluation.plans import EvalRequest
from posenc.evaluation.tune import candidates, tune
from posenc.model.decoder import Decoder, ModelShape
from posenc.results.load import spoken_name
from posenc.results.schema import Record, RunFacts, make_record
from posenc.results.store import find_record, write_record
from posenc.running.run_directory import put_together
from posenc.running.signals import StopFlag
from posenc.tracking import Tracker, build_tracker
from posenc.training.distributed import current


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its exit code, and the records to show (None: all that are stored)."""

    exit_code: int
    records: list[Record] | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A validated training or evaluation of a run."""

    directory: Path
    settings: dict[str, Any]  # the run's: what config.yaml says
    hash: str
    data: dict[str, Any]  # the corpus to measure on
    tokenizer: dict[str, Any]  # the one it is trained with
    tracking: dict[str, Any]
    facts: CorpusFacts
    shape: ModelShape
    device: torch.device
    evaluation: EvalPlan
    own_text: bool = True  # the corpus to measure on is the one it is trained on


Corpus = tuple[TokenStore, TokenStore | None]  # its tokens, and its bytes where a reference needs them


def tracker_of(job: Job, group: str) -> Tracker:
    """Return the tracker of the first process, a no-op on the others."""
    if not current().is_first:
        return Tracker()
    return build_tracker(
        job.tracking,
        run_name=job.directory.name,
        group=group,
        tags=[str(spoken_name(job.settings["encoding"])), job.settings["experiment_name"]],
        config=job.settings,
        run_dir=job.directory,
    )


def tokenised(job: Job, context_length: int | None = None) -> Corpus:
    """Return the corpus to measure on, and to train on at `context_length`; UserError if it is too short.

    Its bytes too, before anything is trained: hours later the text may be out of reach, or changed.
    """
    group = current()
    store = group.in_turn(lambda: prepare(job.data, job.tokenizer, facts=job.facts))
    longest = max(job.evaluation.windows)
    for split in job.evaluation.splits:
        check_lengths(store, split=split, needed_tokens=longest + 1, context_length=context_length)
    if "fixed-target" not in job.evaluation.protocols or not job.own_text:
        return store, None
    if store.tokenizer["name"] == "bytes":
        return store, store
    return store, group.in_turn(lambda: prepare(job.data, {"name": "bytes"}, facts=job.facts))


def measure(
    job: Job, model: Decoder, corpus: Corpus, facts: RunFacts, stop: StopFlag, *, newer: bool
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


def _cells(job: Job, model: Decoder, texts: Corpus, step: int, stop: StopFlag) -> list[Record]:
    store, trained_bytes = texts
    plan, directory, corpus = job.evaluation, job.directory, job.data["name"]
    subject, request = subject_and_request(job, model, store)
    extension = build_extension(plan.extend, model)
    subject = dataclasses.replace(subject, extension=extension, check_stop=stop.check)
    grid = candidates(extension, model) if plan.tune else []
    if plan.tune and not grid:
        say(f"extend={plan.extend['name']}: no knob to choose, measured as it is")
    cells = plan_cells(subject, request, plan.protocols)
    done = 0
    total = len(cells) + len(grid) * len(request.extrapolating)
    with shown("evaluating", total) as bar:

        def on_cell(record: Record, was_there: bool) -> None:
            nonlocal done
            done += 1
            extended = "" if record["extend"] is None else f"+{record['extend']['name']} "
            split = "" if record["split"] == plan.split else f" on {record['split']} documents"
            text = f"{extended}{record['protocol']} at {record['window']}{split}"
            bar.update(done, text + " (stored)" * was_there)

        def evaluated(cells: Any) -> list[Record]:
            return evaluate(cells, directory, corpus=corpus, checkpoint_step=step, on_cell=on_cell)

        if grid:
            chosen, words = tune(subject, request, grid, evaluated)
            say(f"chosen on validation documents: {words}")
            cells = plan_cells(dataclasses.replace(subject, extension=chosen), request, plan.protocols)
        records = evaluated(cells)
        if "fixed-target" in plan.protocols and trained_bytes is not None:
            records.append(_reference(request, trained_bytes, directory, corpus, step))
    return records


def subject_and_request(job: Job, model: Decoder, store: TokenStore) -> tuple[EvalContext, EvalRequest]:
    """Return the model as it is trained, and what its protocols measure."""
    trained = job.settings["train"]["precision"]
    precision = trained if job.evaluation.precision == "auto" else job.evaluation.precision
    subject = EvalContext(
        model=model,
        train_length=job.settings["context_length"],
        seed=job.settings["seed"],
        precision=precision,
        recorded_precision=None if precision == trained else precision,
        device=job.device,
        store=store,
        split=job.evaluation.split,
        batch_tokens=job.evaluation.batch_tokens,
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
        "protocol": trigram.NAME,
        "window": request.train_length,
        "fingerprint": store.fingerprint,
        "split": request.split,
        "targets_hash": plan.hash,
        "checkpoint_step": step,
    }
    stored = find_record(directory, **identity, extend=None, stride=None)
    if stored is not None:
        return stored
    sums = trigram.trigram_sums(trained_bytes, store, request.split, plan)
    record = make_record(
        **identity,
        train_length=request.train_length,
        corpus=corpus,
        seconds=round(time.monotonic() - began, 3),
        **sums.columns(store.splits[request.split]),
    )
    write_record(directory, record)
    return record
