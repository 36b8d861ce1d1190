"""Measure cells that are not measured yet: after a training, of a stored run, or of a given model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from posenc.core.console import say
from posenc.core.errors import RunError
from posenc.core.progress import progress_line
from posenc.core.run_states import FINISHED
from posenc.data import TokenStore, build_tokenizer, check_lengths, is_task, plant_of, prepare, vocabulary
from posenc.data.corpus import BYTES
from posenc.evaluation.evaluate import EvalCell, evaluate, is_stored, plan_cells
from posenc.evaluation.models import MeasuredModel
from posenc.evaluation.passes import EvalContext
from posenc.evaluation.reference import measure_reference
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.sums import LossSums
from posenc.evaluation.trigram import trigram_sums
from posenc.evaluation.tune import tune
from posenc.evaluation.unigram import unigram_sums
from posenc.results.records import TRIGRAM, UNIGRAM, Record, RunFacts
from posenc.results.runs import encoding_name
from posenc.running import run_directory
from posenc.running.cell_progress import CellProgress, work_of_cells
from posenc.running.facts import facts_of_given_model, run_facts
from posenc.running.invocation import Invocation
from posenc.running.job import Job
from posenc.running.locks import HeldRunError, is_held, locked
from posenc.running.measured_text import text_line, unigram_warning
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.running.stored_run import load_model
from posenc.settings.tree import NONE, RunSettings
from posenc.tracking import TrackedRun, Tracker, build_tracker
from posenc.training.checkpoint import newest_checkpoint
from posenc.training.distributed import current

TRACKING_SECONDS = 60.0  # for so long an evaluation waits for another one that tells the tracker


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    exit_code: int
    records: list[Record] | None = None  # to show; None: all that are stored


@dataclass(frozen=True)
class Corpus:
    """A corpus as tokens."""

    store: TokenStore
    byte_store: TokenStore | None  # the corpus as bytes, for the reference; None: no reference is measured


def run_eval(job: Job, invocation: Invocation) -> Outcome:
    """Measure the cells that are not measured yet, and write results.json.

    Every cell of a given model is measured again, unless something identifies its weights.
    """
    with StopFlag() as stop:
        try:
            if job.given_model is None:
                return Outcome(0, _measure_run(job, invocation, stop))
            return Outcome(0, _measure_given_model(job, invocation, stop))
        except InterruptedRunError:
            # Records of a function without known weights are not found again, so nothing can be continued.
            if job.given_model is None or job.given_model.has_known_weights:
                say(f"{stop.name}: finished cells are stored; the same command continues")
            return Outcome(stop.exit_code)


def _measure_run(job: Job, invocation: Invocation, stop: StopFlag) -> list[Record]:
    """Measure a stored run, and tell its tracker."""
    trained = job.run_settings
    corpus = tokenise(job)
    with locked(job.directory, job.lock, waits=invocation.waits), run_directory.log_file(job.directory):
        stop.guard()
        # read again: a running training may have saved another one since the job was planned
        checkpoint = newest_checkpoint(job.directory / "checkpoints", job.writer)
        if checkpoint is None:
            raise RunError(f"the checkpoints of {job.directory} are gone")
        model = load_model(trained, job.run_shape, checkpoint, vocabulary(trained.data.plant, corpus.store))
        fingerprint = checkpoint.provenance.fingerprint
        facts = run_facts(job, model, checkpoint.so_far, fingerprint, trained_here=None)
        records = measure(job, model, corpus, facts, stop, replaces_same_step=False)
    is_training = job.tracking.name != NONE and is_held(job.directory, "run")
    if is_training:  # the training sends all records at its end
        say("this run is being trained: its own process tells the tracker of these numbers")
    elif job.tracking.name != NONE:
        _tell_tracker(job, trained.experiment_name, checkpoint.step)
    return records


def _tell_tracker(job: Job, group: str, step: int) -> None:
    """Tell the tracker of all records of a checkpoint, unless another evaluation is at it for a minute."""
    try:
        # one process at a time: each reads what was sent before, and writes that back
        with locked(job.directory, "tracking", seconds=TRACKING_SECONDS), tracked(job, group) as tracker:
            tracker.log_evaluation(run_directory.records_at(job.directory, step))
    except HeldRunError as error:
        say(f"the tracker was not told: {error.problem}; the same command tells it")


def _measure_given_model(job: Job, invocation: Invocation, stop: StopFlag) -> list[Record]:
    """Measure a model that posenc did not train."""
    directory = job.directory
    assert job.given_model is not None
    # First of all, so that wrong weights are an error before a text is tokenised and anything is written.
    given_model = job.given_model.loaded(job.device)
    corpus = tokenise(job)
    with locked(directory, job.lock, waits=invocation.waits):
        run_directory.refuse_links(directory)
        # A finished model may be measured again by other settings. Until that has succeeded, its status
        # stays finished, and config.yaml keeps the old settings.
        was_finished = run_directory.was_finished(directory)
        with nullcontext() if was_finished else run_directory.recorded_status(directory, stop):
            if not was_finished:
                run_directory.write_config(directory, job.settings)
            facts = facts_of_given_model(job, given_model)
            records = measure(job, given_model, corpus, facts, stop, replaces_same_step=True)
        run_directory.write_config(directory, job.settings)
        run_directory.write_status(directory, FINISHED, step=0)
    return records


@contextmanager
def tracked(job: Job, group: str) -> Iterator[Tracker]:
    """Yield the tracker of a run, and end it with the run's status. Only the first process has a real one."""
    tracker = Tracker()
    if current().is_first:
        # The other processes of a training would each make a run of their own in W&B.
        encoding = encoding_name(job.settings.encoding.plain())
        tags = [str(encoding), job.settings.experiment_name]
        run = TrackedRun(job.directory.name, group, tags, job.settings.plain(), job.directory)
        tracker = build_tracker(job.tracking, run)
    status = FINISHED
    try:
        yield tracker
    except BaseException as error:
        status = run_directory.status_after(error)
        raise
    finally:
        tracker.finish(status)


def tokenise(job: Job, context_length: int | None = None) -> Corpus:
    """Return the corpus as tokens, to measure on, and to train on at `context_length`.

    Raises UserError if it is too short, or does not have the words to plant.
    """
    processes = current()
    evaluation = job.evaluation
    store = processes.in_turn(lambda: prepare(job.data, job.tokenizer, facts=job.corpus_facts))
    needed = evaluation.lengths.longest + 1
    check_lengths(store, splits=evaluation.splits, needed_tokens=needed, context_length=context_length)
    if job.data.plant is not None:
        plant_of(job.data.plant, store)  # only for its check of the text, before anything is written
    if not evaluation.measures_headline or not job.is_own_text:
        return Corpus(store, None)
    # The trigram reads bytes, whatever the model reads. For a model of bytes they are here already.
    if store.tokenizer["name"] == "bytes":
        return Corpus(store, store)
    # It is read now and not when the reference is measured: hours later it may be out of reach, or changed.
    byte_store = processes.in_turn(lambda: prepare(job.data, BYTES, facts=job.corpus_facts))
    return Corpus(store, byte_store)


def measure(
    job: Job,
    model: MeasuredModel,
    corpus: Corpus,
    facts: RunFacts,
    stop: StopFlag,
    *,
    replaces_same_step: bool,
) -> list[Record]:
    """Measure every planned cell, write results.json, and return the records.

    With `replaces_same_step` the facts replace stored ones of the same step. Raises InterruptedRunError once
    a stop was requested; finished cells are stored.
    """
    if not job.is_own_text:
        _say_what_is_measured(job)
    with stop.at_once():
        # Processes that share a training do not share an evaluation. The first one measures, the others wait.
        records = current().first(lambda: _measure_cells(job, model, corpus, facts["steps"], stop))
    warning = unigram_warning(records, corpus.store)
    if warning is not None:
        say(warning)
    run_directory.put_together(job.directory, facts, replaces_same_step=replaces_same_step)
    return records


def _say_what_is_measured(job: Job) -> None:
    """Print what the model was trained on, and what it is measured on."""
    for line in (text_line(job.data, job.corpus_facts, job.evaluation.split, job.settings), *job.notes):
        say(line)


def _measure_cells(job: Job, model: MeasuredModel, corpus: Corpus, step: int, stop: StopFlag) -> list[Record]:
    """Measure every cell, with the knobs of an extension chosen first if they are to be tuned.

    fixed-target comes with its reference: the loss of a byte trigram if the model was trained on this text,
    else that of the frequencies of the text's tokens.
    """
    evaluation = job.evaluation
    request = request_of(job, corpus.store)
    # An extension that lacks knobs is refused here, unless they are searched below.
    extension = evaluation.extension_of(model)
    as_trained = eval_context(job, model, corpus.store)
    tries = evaluation.tries if extension is not None else 0
    cells_of_tuning = tries * len(request.lengths.beyond_training)
    with progress_line("evaluating", None) as bar:
        progress = CellProgress(bar, evaluation.split)
        context = dataclasses.replace(
            as_trained, extension=extension, check_stop=stop.check, on_batch=progress.inside
        )
        cells = plan_cells(context, request, evaluation.protocols)
        # The cells are planned with the callbacks of this bar, so its length is known only now.
        bar.total = len(cells) + cells_of_tuning
        # The candidates of a tuning are planned one by one in `tune`, so their work is not known yet.
        if not cells_of_tuning:
            stored = [is_stored(cell, job.directory, step) for cell in cells]
            bar.weigh(work_of_cells(cells, stored))
        evaluate_cells = functools.partial(
            evaluate,
            run_dir=job.directory,
            corpus=job.data.name,
            checkpoint_step=step,
            on_begin=progress.begin,
            on_cell=progress.end,
        )
        if tries:
            context = _tuned_context(job, context, request, evaluate_cells)
            cells = plan_cells(context, request, evaluation.protocols)
        records = evaluate_cells(cells)
        records += _reference_records(job, request, corpus, step)
    return records


def _tuned_context(
    job: Job,
    context: EvalContext,
    request: EvalRequest,
    evaluate_cells: Callable[[Sequence[EvalCell]], list[Record]],
) -> EvalContext:
    """Return the context with the knobs of its extension chosen on validation documents, and say how."""
    evaluation = job.evaluation
    assert context.extension is not None
    tuned = tune(
        context,
        request,
        evaluation.headline,
        context.extension,
        tries=evaluation.tries,
        evaluate_cells=evaluate_cells,
    )
    say(f"extend={evaluation.extension_name}: {tuned.summary}")
    return dataclasses.replace(context, extension=tuned.extension)


def _reference_records(job: Job, request: EvalRequest, corpus: Corpus, step: int) -> list[Record]:
    """Return the record of the reference on the targets of fixed-target; none where there is no reference."""
    evaluation = job.evaluation
    byte_store = corpus.byte_store
    name = UNIGRAM if byte_store is None else TRIGRAM
    # The answers of a task are drawn, so that no text has their frequencies.
    if name == UNIGRAM and (job.is_own_text or is_task(job.data) or not evaluation.measures_headline):
        return []
    plan = evaluation.headline.plan(request)

    def make_sums() -> LossSums:
        if byte_store is None:
            return unigram_sums(corpus.store, request.split, plan)
        return trigram_sums(byte_store, corpus.store, request.split, plan)

    record = measure_reference(
        name, request, plan, make_sums, job.directory, corpus=job.data.name, checkpoint_step=step
    )
    return [record]


def eval_context(job: Job, model: MeasuredModel, store: TokenStore) -> EvalContext:
    """Return what protocols measure with: the model as it was trained, and the text."""
    evaluation = job.evaluation
    trained = _training_precision(job)
    precision: str = evaluation.settings.precision
    if precision == "auto":
        precision = trained
    return EvalContext(
        model=model,
        context_length=job.settings.context_length,
        seed=job.settings.seed,
        precision=precision,
        # A record names its precision only if the training had another one. It then stands beside the record
        # in the precision of the training, and does not replace it.
        recorded_precision=None if precision == trained else precision,
        device=job.device,
        store=store,
        split=evaluation.split,
        batch_tokens=evaluation.settings.batch_tokens,
    )


def _training_precision(job: Job) -> str:
    """Return the precision of the training, or of the weights of a given model."""
    settings = job.settings
    return settings.train.precision if isinstance(settings, RunSettings) else settings.precision


def request_of(job: Job, store: TokenStore) -> EvalRequest:
    """Return what the protocols plan their targets for."""
    tokenizer = build_tokenizer(job.tokenizer, job.corpus_facts) if job.evaluation.needs_tokenizer else None
    # `job.data` has a plant only if the model was trained on it: a model knows no other keys
    return job.evaluation.request(store, job.data.plant, job.settings.seed, tokenizer)


def targets_of(job: Job) -> set[tuple[str, str]]:
    """Return (protocol, hash of its targets) for each protocol of the job."""
    store = prepare(job.data, job.tokenizer, facts=job.corpus_facts)
    request = request_of(job, store)
    return {(protocol.name, protocol.plan(request).hash) for protocol in job.evaluation.protocols}
