"""Run a job of `posenc train`: train, evaluate, and write the results; or continue a stopped run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from posenc.core.console import say
from posenc.core.errors import RunError
from posenc.core.machine import compiler_works, peak_memory, say_load
from posenc.core.progress import progress_line
from posenc.core.run_states import DIVERGED, FINISHED, INTERRUPTED
from posenc.data import (
    PlantedSampler,
    ScheduledSampler,
    TaskSampler,
    TokenStore,
    WindowSampler,
    build_tokenizer,
    corpus_notes,
    plant_of,
    vocabulary,
)
from posenc.encodings.base import Encoding
from posenc.encodings.options import warnings_of_options
from posenc.model.decoder import Decoder, count_parameters
from posenc.results.runs import encoding_name
from posenc.running import run_directory
from posenc.running.evaluate import Corpus, Outcome, measure, tokenise, tracked
from posenc.running.facts import TrainedHere, run_facts
from posenc.running.initial_weights import begin_with
from posenc.running.invocation import Invocation
from posenc.running.job import Job, Training
from posenc.running.locks import locked
from posenc.running.model_parts import build_model
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.running.training_report import TrainingReport
from posenc.running.utilization import utilization_of
from posenc.settings.tree import RunSettings
from posenc.tracking import Tracker
from posenc.training.checkpoint import CheckpointPlan, Provenance
from posenc.training.device import compiled_blocks
from posenc.training.distributed import current
from posenc.training.loop import Callbacks, train
from posenc.training.plan import TrainingPlan
from posenc.training.tally import Trained
from posenc.training.validation import AUTO, ValidationPlan, automatic_interval, plan_validation

log = logging.getLogger(__name__)


class DivergedRunError(RunError):
    """Report that loss or gradient are no longer finite. The status `diverged` is final without --retry."""

    status = DIVERGED


def run_train(job: Job, overrides: list[str], invocation: Invocation) -> Outcome:
    """Train and evaluate a run, continue it, or find it finished.

    Raises UserError if the corpus is too short, RunError if another process holds the run; nothing is written
    then.
    """
    evaluation = job.settings.eval
    # The processes of a run must decide alike, so the first one, which alone writes here, decides for all.
    if current().first(lambda: run_directory.is_done(job.directory, evaluation, retry=invocation.retry)):
        run_directory.drop_leftovers_of(job.directory)
        say(f"already finished: {job.directory}")
        return Outcome(0)
    training = job.training
    assert training is not None
    if training.auto_precision is not None:
        auto = f"train.precision=auto is {training.auto_precision} here"
        say(f"{auto}; begun in {training.precision}, this run stays so")
    # signals are taken over before anything is written, so that no half of a run is left behind
    with StopFlag() as stop:
        try:
            return _run_in_directory(job, training, overrides, invocation, stop)
        except InterruptedRunError:
            if stop.guarded:
                say(f"{stop.name}: everything finished so far is saved; the same command continues")
            else:
                say(f"{stop.name}: stopped before the first step; the same command begins again")
            return Outcome(stop.exit_code)


def _run_in_directory(
    job: Job, training: Training, overrides: list[str], invocation: Invocation, stop: StopFlag
) -> Outcome:
    """Tokenise, lock the directory, run, and write how it ended to status.json."""
    settings = job.run_settings
    directory = job.directory
    processes = current()
    # The lock makes the directory, so that a text which is too short is refused before it.
    corpus = tokenise(job, settings.context_length)
    # This comes before the lock, since the lock's own file could be a link to a file elsewhere.
    run_directory.refuse_links(directory)
    # The log is opened inside the lock. So a second process, which is refused, writes nothing into it.
    with locked(directory, job.lock, waits=invocation.waits), run_directory.log_file(directory):
        # another process may have finished it meanwhile
        if processes.first(lambda: run_directory.is_done(directory, settings.eval, retry=invocation.retry)):
            return Outcome(0)
        # A finished run may be measured again with other `eval` settings. Until that has succeeded, its
        # status stays finished, and config.yaml keeps the old settings.
        is_trained = processes.first(lambda: run_directory.was_finished(directory))
        # Until here a signal may strike anywhere, also while the process
        # waits for the lock: nothing is to be saved.
        stop.guard()
        # It goes by the status `diverged`, which `running` replaces below.
        run_directory.forget_diverged(directory)
        status: AbstractContextManager[None] = nullcontext()
        if not is_trained:
            status = run_directory.recorded_status(
                directory, stop, overrides=overrides, config_dir=invocation.config_dir
            )
        with status, processes.watched():
            if not is_trained:
                run_directory.write_config(directory, settings)
            return _train_and_measure(job, training, corpus, invocation, stop)


def _train_and_measure(
    job: Job, training: Training, corpus: Corpus, invocation: Invocation, stop: StopFlag
) -> Outcome:
    """Train the model, or continue, then measure it and write the results."""
    settings = job.run_settings
    directory = job.directory
    store = corpus.store
    model = build_model(settings, job.run_shape, vocabulary(settings.data.plant, store))
    # The first weights are copied into a model that was initialised, since an encoding may lack some of them.
    if training.initial is not None:
        begin_with(training.initial, directory / "checkpoints", model)
    _log_notes(job, model, store)
    with tracked(job, invocation.sweep or settings.experiment_name) as tracker:
        # The evaluation is not compiled: every length of its windows would be compiled anew, for minutes.
        with compiled_blocks(model, training.compile and compiler_works(job.device)):
            trained = _train(job, training, model, store, tracker, invocation, stop)
        if trained.status == DIVERGED:
            # It is written here, where the reason and the step are known.
            # `recorded_status` leaves such a run alone.
            run_directory.write_status(directory, DIVERGED, reason=trained.reason, step=trained.so_far.step)
            hint = "nothing was averaged in; try a smaller train.lr"
            raise DivergedRunError(f"training diverged: {trained.reason}", hint=hint)
        if trained.status == INTERRUPTED:
            # `run_train` tells the user: a stop while training and a stop while measuring end alike.
            raise InterruptedRunError
        # A process that only loads the weights knows neither the memory nor the MFU of their training, so it
        # leaves the stored facts as they are.
        trained_here = None
        if trained.advanced:
            trained_here = TrainedHere(peak_memory(job.device), utilization_of(job, model))
        facts = run_facts(job, model, trained.so_far, store.fingerprint, trained_here)
        records = measure(job, model, corpus, facts, stop, replaces_same_step=trained.advanced)
        # All records, not only those measured here: `posenc eval` may have measured these weights meanwhile,
        # and leaves it to the training to tell the tracker.
        tracker.log_evaluation(run_directory.records_at(directory, trained.so_far.step))
        # the settings again: a finished run that was measured further has other ones now
        run_directory.write_config(directory, settings)
        run_directory.write_status(directory, FINISHED, step=trained.so_far.step)
        return Outcome(0, records)


def _log_notes(job: Job, model: Decoder, store: TokenStore) -> None:
    """Log what readers of the run's numbers must know about its corpus and its encoding."""
    evaluation = job.evaluation
    longest = evaluation.lengths.longest
    notes = corpus_notes(job.corpus_facts, evaluation.split, longest, job.settings.context_length, store)
    options = [module for module in model.options if isinstance(module, Encoding)]
    # An encoding does not name itself, as in Python, where the caller does.
    warnings = [f"{model.encoding.name}: {text}" for text in model.effective_encoding.warnings()]
    warnings += warnings_of_options(model.encoding, options)
    for note in [*notes, *warnings]:
        # What was left out when a corpus was read is true of every run
        # on it, so it is no warning about this one.
        level = logging.INFO if note in job.corpus_facts.notes else logging.WARNING
        log.log(level, "%s", note)


def _train(
    job: Job,
    training: Training,
    model: Decoder,
    store: TokenStore,
    tracker: Tracker,
    invocation: Invocation,
    stop: StopFlag,
) -> Trained:
    """Train the model in place. Steps are logged to metrics.jsonl, the tracker and the progress line."""
    settings = job.run_settings
    _say_what_is_trained(job, training, model)
    # a sweep prints the load once for all of its jobs
    # Of several processes each has its part of the cores, and on a GPU the cores do not set the pace.
    if job.device.type == "cpu" and current().size == 1 and not invocation.in_sweep:
        say_load(torch.get_num_threads())
    utilization = utilization_of(job, model)
    with progress_line("training", training.steps) as progress:
        report = TrainingReport(job.directory, training.steps, utilization, tracker, progress)
        callbacks = Callbacks(report.on_resume, report.on_log, progress.update)
        plan = _training_plan(job, training, store)
        sampler = _sampler(settings, training, store)
        return train(model, sampler, training.optimization, plan, callbacks, stop)


def _say_what_is_trained(job: Job, training: Training, model: Decoder) -> None:
    """Print one line on the model, the training and the corpus."""
    settings = job.run_settings
    parameters = count_parameters(model).total
    batch_tokens = training.batch_windows * settings.context_length
    processes = f"{current().size} processes, " if current().size > 1 else ""
    # A sum is called by its parts, `alibi+rope`, as in the tables.
    name = encoding_name(settings.encoding.plain())
    say(
        f"{name}: {parameters:,} parameters, T={settings.context_length}, "
        f"{training.steps} steps of {batch_tokens} tokens, {training.precision} on {job.device}, "
        f"{processes}{settings.data.name} as {settings.tokenizer.name} -> {job.directory}"
    )


def _training_plan(job: Job, training: Training, store: TokenStore) -> TrainingPlan:
    """Return how long the run is trained, on what, and what is kept."""
    settings = job.run_settings
    return TrainingPlan(
        steps=training.steps,
        batch_windows=training.batch_windows,
        context_length=settings.context_length,
        seed=settings.seed,
        precision=training.precision,
        device=job.device,
        log_every=settings.train.log_every,
        checkpoints=_checkpoint_plan(job, training, store),
        cuda_graph=training.cuda_graph,
        validation=_validation_plan(settings, training, store),
    )


def _checkpoint_plan(job: Job, training: Training, store: TokenStore) -> CheckpointPlan:
    """Return where checkpoints are written, how often, and what they store about their origin."""
    settings = job.run_settings
    # The definition goes with the weights, so that they are read by the same tokens after the user's file
    # or the cache is gone.
    tokenizer = build_tokenizer(settings.tokenizer, job.corpus_facts)
    files = {} if tokenizer.definition is None else {"tokenizer.json": tokenizer.definition}
    provenance = Provenance(
        fingerprint=store.fingerprint,
        tokenizer=store.tokenizer,
        code=training.code,
        writer=job.writer,
    )
    seconds = settings.train.checkpoint_seconds
    return CheckpointPlan(job.directory / "checkpoints", seconds, provenance, files)


def _validation_plan(settings: RunSettings, training: Training, store: TokenStore) -> ValidationPlan | None:
    """Return which windows are validated while training, and how often; None for none."""
    interval = settings.train.validate_every
    if interval == AUTO:
        # It follows from the number of steps and not from a clock. So a
        # resumed run validates after the same steps.
        interval = automatic_interval(training.steps, settings.train.log_every)
    assert not isinstance(interval, str)
    plan = plan_validation(
        store,
        every=interval,
        steps=training.steps,
        batch_windows=training.batch_windows,
        context_length=settings.context_length,
    )
    if plan is None and interval is not None and store.task is None:
        length = settings.context_length
        log.info("no validation document has %d tokens, so none is measured while training", length + 1)
    return plan


def _sampler(settings: RunSettings, training: Training, store: TokenStore) -> ScheduledSampler:
    """Return the sampler of all stages of the training."""
    make_sampler = _sampler_maker(settings, store)
    samplers = {stage.length: make_sampler(stage.length) for stage in training.stages}
    return ScheduledSampler(training.stages, samplers)


def _sampler_maker(settings: RunSettings, store: TokenStore) -> Callable[[int], WindowSampler]:
    """Return a function from a window length to a sampler, which plants pairs with `data.plant`."""
    task = store.task
    if task is not None:
        return lambda length: TaskSampler(task, length, settings.seed)
    plant = settings.data.plant
    if plant is None:
        return lambda length: WindowSampler(store, length, settings.seed)
    planted = plant_of(plant, store)
    return lambda length: PlantedSampler(store, length, settings.seed, planted)
