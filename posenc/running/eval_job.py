"""Read a run on disk as plain data, validate an evaluation of it, and run that (`posenc eval`).

Nothing that the run's config.yaml names is imported: its encoding must be one of posenc's, an installed one,
or in a plug-in named on this command line. Measuring itself, cell by cell, is that of `posenc train` too.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from posenc.config.checks import (
    check_evaluation,
    check_key_tokens,
    check_model,
    check_name,
    check_positions_reach,
    default_evaluation,
)
from posenc.core.console import say, shown
from posenc.core.errors import RunError, UserError
from posenc.core.paths import expanded
from posenc.data import (
    TokenStore,
    absolute_data,
    check_lengths,
    check_plant,
    check_tokenizer,
    inspect,
    prepare,
    stored_tokenizer,
    vocabulary,
)
from posenc.evaluation import fixed_target, trigram
from posenc.evaluation.evaluate import evaluate, plan_cells, protocol_module
from posenc.evaluation.extensions import NONE, build_extension
from posenc.evaluation.foreign import Subject
from posenc.evaluation.forward_cache import EvalContext
from posenc.evaluation.key_tokens import stored_keys
from posenc.evaluation.plans import EvalRequest
from posenc.evaluation.tune import tune
from posenc.model.decoder import Decoder, ModelShape
from posenc.results.load import load_run, spoken_name
from posenc.results.schema import Record, RunFacts, make_record
from posenc.results.settings import as_text
from posenc.results.store import find_record, write_record
from posenc.running import run_directory as folder
from posenc.running.build import Job, build_decoder, build_model, code_of, resolve_parts, run_facts
from posenc.running.run_directory import is_held, locked, put_together
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.tracking import Tracker, build_tracker, check_tracking
from posenc.training.checkpoint import (
    Checkpoint,
    check_run,
    check_weights,
    load_weights,
    newest_checkpoint,
    stored_shapes,
)
from posenc.training.device import resolve_device
from posenc.training.distributed import current


@dataclass(frozen=True)
class StoredRun:
    """A run whose settings hold together; `outline` is its model on the meta device."""

    directory: Path
    settings: dict[str, Any]
    shape: ModelShape
    outline: Decoder
    checkpoint: Checkpoint


def stored_run(run: str, plugins: list[str]) -> StoredRun:
    """Return the run in the directory `run`. Raises UserError; RunError for damaged files."""
    directory = directory_of(run)
    folder.refuse_links(directory)
    loaded = load_run(directory)
    if loaded.config is None:
        raise UserError("run", run, loaded.problem or "config.yaml cannot be read")
    if "subject" in loaded.config or "model" not in loaded.config:
        hint = "posenc eval subject=hf subject.path=..., or posenc.evaluate"
        raise UserError("run", run, "is a model that was measured, not a run that was trained", hint=hint)
    settings = {**loaded.config, "plugins": plugins}
    with _plain(run):
        shape = check_model(settings["model"])
        try:
            settings.update(resolve_parts(settings))
        except UserError as error:  # plug-ins that it names are told the user, never imported
            if error.key == "encoding" and not plugins and (own := loaded.config.get("plugins")):
                named = as_text(own).replace('"', "").replace(" ", "")
                error.hint = f"it was trained with plugins={named}: if you trust that code, say so here too"
            raise
        with torch.device("meta"):
            outline = build_decoder(settings, shape, vocab_size=2)
        source = code_of(settings, outline)
    checkpoint = newest_checkpoint(directory / "checkpoints")
    if checkpoint is None:
        raise UserError("run", run, "has no checkpoint yet; train it first")
    check_run(checkpoint, {"encoding": loaded.config["encoding"]})
    if checkpoint.state.get("encoding") != source:
        problem = f"was trained by other code of its encoding {settings['encoding']['name']}"
        hint = "its weights mean nothing to the changed one; train it again"
        raise UserError("run", run, problem, hint=hint)
    return StoredRun(directory, settings, shape, outline, checkpoint)


@contextmanager
def _plain(run: str) -> Iterator[None]:
    """Turn what a stranger's config.yaml makes our own code raise into a UserError."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError("run", run, f"its config.yaml is not one of posenc's ({error!r})") from error


def load_model(run: StoredRun | Job, checkpoint: Checkpoint, vocab_size: int | None = None) -> Decoder:
    """Return the model with the verified weights of the checkpoint. Raises RunError for damaged files."""
    size = vocab_size or _vocabulary(checkpoint.path)
    with torch.device("meta"):  # before anything of a stranger's size is allocated
        check_weights(checkpoint.path, build_decoder(run.settings, run.shape, size))
    model = build_model(run.settings, run.shape, size)
    load_weights(checkpoint.path, model)
    return model


def _vocabulary(checkpoint: Path) -> int:
    if (shape := stored_shapes(checkpoint).get("embedding.weight")) is None:
        raise RunError(f"{checkpoint} holds no token embeddings")
    return shape[0]


def directory_of(run: str) -> Path:
    """Return the run directory that a user names by its path, or by name or hash for one below runs/."""
    directory = expanded(run)
    if re.fullmatch(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*", run) and not directory.exists():
        named = f"*-{run}" if re.fullmatch(r"[0-9a-f]{8}", run) else run
        found = [path.parent for path in Path("runs").glob(f"*/{named}/config.yaml")]
        if len(found) > 1:
            raise UserError("run", run, "stands for several runs", allowed=sorted(map(str, found)))
        directory = found[0] if found else directory
    if not directory.name or directory.name == "..":  # the folder's name ends in the hash of its settings
        directory = Path(os.path.abspath(directory))  # noqa: PTH100 (resolve() follows links)
    if not os.path.isfile(directory / "config.yaml"):  # noqa: PTH113 (is_file raises for names too long)
        hint = "a run directory, or for one below runs/ its name or hash (posenc runs lists them)\n"
        hint += "every run below a folder, or of a glob: posenc eval -m run=..."
        problem = (
            "not a run directory: there is no config.yaml"
            if os.path.exists(directory)  # noqa: PTH110 (exists() raises for names too long)
            else "there is no such folder"
        )
        raise UserError("run", run, problem, hint=hint)
    return directory


def eval_job(settings: dict[str, Any]) -> Job:
    """Return the validated job of composed `eval` settings. Raises UserError; RunError for damaged files."""
    if settings["run"] is None:
        raise UserError("run", None, "is needed and has no default", hint="add run=..., or subject=hf")
    if settings["context_length"] is not None:
        hint = "a run is measured as it was trained; what eval takes: posenc eval --help"
        raise UserError("context_length", settings["context_length"], "is the run's own", hint=hint)
    stored = stored_run(str(settings["run"]), settings["plugins"])
    trained, checkpoint = stored.settings, stored.checkpoint
    length = trained["context_length"]
    with _plain(settings["run"]):
        check_name("experiment_name", trained["experiment_name"])
        asked = {key: value for key, value in settings["eval"].items() if value is not None}
        grid = {key: value for key, value in asked.pop("recall").items() if value is not None}
        usual = {**default_evaluation(), **trained["eval"]}  # of a setting that the run is older than
        recall = {"recall": {**usual["recall"], **grid}}
        evaluation = check_evaluation({**usual, **asked, **recall}, length, settings["extend"])
        check_plant(trained["data"].get("plant"), length)
        data = absolute_data(settings["data"] or trained["data"])
        check_tokenizer(trained["tokenizer"])
        precision = trained["train"]["precision"]
    if precision not in ("fp32", "bf16"):
        raise UserError("run", settings["run"], f"its precision {precision!r} is not one of posenc's")
    longest = max(evaluation.windows)
    check_positions_reach(stored.outline, longest)
    if evaluation.extend["name"] != NONE and "extend" in trained:
        raise UserError(
            "extend", evaluation.extend["name"], f"it was trained with {trained['extend']['name']}"
        )
    # refused now, if it does not apply
    build_extension(evaluation.extend, stored.outline, tune=bool(evaluation.tune))
    if evaluation.tune and longest <= length:
        raise UserError("extend.tune", True, "there is no length beyond context_length to choose by")
    check_tracking(settings["tracking"])
    definition = checkpoint.path / "tokenizer.json"
    tokenizer = stored_tokenizer(definition) if definition.is_file() else trained["tokenizer"]
    for split in evaluation.splits:
        facts = inspect(data, tokenizer, split=split, needed_tokens=longest + 1, context_length=None)
    check_key_tokens(evaluation, facts.fingerprint, tokenizer["name"])
    own_text = facts.fingerprint == checkpoint.state.get("fingerprint")
    if settings["data"] is None and not own_text:
        problem = "its text is not what this run was trained on any more (another fingerprint)"
        hint = f"to measure on it all the same say data={facts.name}"
        raise UserError("data", facts.name, problem, hint=hint)
    return Job(
        directory=stored.directory,
        settings=trained,
        hash=stored.directory.name.rpartition("-")[2],
        data=data,
        tokenizer=tokenizer,
        tracking=settings["tracking"],
        facts=facts,
        shape=stored.shape,
        device=resolve_device(settings["device"]),
        evaluation=evaluation,
        own_text=own_text,
    )


def targets_of(job: Job) -> set[tuple[str, str]]:
    """Return the (protocol, hash of its targets) of everything that the job measures."""
    store = prepare(job.data, job.tokenizer, facts=job.facts)
    request = request_of(job, store)
    return {(name, protocol_module(name).plan(request).hash) for name in job.evaluation.protocols}


def run_eval(job: Job) -> Outcome:
    """Measure what is not measured yet and write results.json."""
    with StopFlag() as stop:
        try:
            return _run(job, stop)
        except InterruptedRunError:
            say(f"{stop.name}: finished cells are stored; the same command continues")
            return Outcome(stop.exit_code)


def _run(job: Job, stop: StopFlag) -> Outcome:
    trained, corpus = job.settings, tokenised(job)
    with locked(job.directory, "evaluation"), folder.log_file(job.directory):
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
    return Outcome(0, records)


# --- measuring


@dataclass(frozen=True)
class Outcome:
    """How a job ended: its exit code, and the records to show (None: all that are stored)."""

    exit_code: int
    records: list[Record] | None = None


Corpus = tuple[TokenStore, TokenStore | None]  # its tokens, and its bytes where a reference needs them


@contextmanager
def tracked(job: Job, group: str) -> Iterator[Tracker]:
    """Yield the tracker of the first process, a no-op on the others; tell it at last how the run ended."""
    tracker = Tracker()
    if current().is_first:
        tracker = build_tracker(
            job.tracking,
            run_name=job.directory.name,
            group=group,
            tags=[str(spoken_name(job.settings["encoding"])), job.settings["experiment_name"]],
            config=job.settings,
            run_dir=job.directory,
        )
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
