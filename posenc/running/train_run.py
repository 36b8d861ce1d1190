"""Run one training from a validated job to its results: tokenise, train, evaluate, write results.json."""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from posenc.core.console import say, shown
from posenc.core.errors import RunError
from posenc.core.machine import compiler_works, peak_memory
from posenc.data import (
    TokenStore,
    WindowSampler,
    build_tokenizer,
    check_lengths,
    corpus_notes,
    prepare,
)
from posenc.model.decoder import Decoder, count_parameters
from posenc.results.load import spoken_name
from posenc.running import run_directory as folder
from posenc.running.build import build_model, run_facts
from posenc.running.measure import Outcome, byte_store, measure, tracker_of
from posenc.running.run_lock import locked
from posenc.running.signals import SWEEP, InterruptedRunError, StopFlag
from posenc.running.train_job import TrainJob
from posenc.tracking import Tracker
from posenc.training.device import compiled_blocks
from posenc.training.distributed import current
from posenc.training.loop import Progress, Trained, train

log = logging.getLogger(__name__)


class DivergedRunError(RunError):
    """Loss or gradient are no longer finite; status.json says `diverged`, which is final without --retry."""


def run_train(job: TrainJob, overrides: list[str]) -> Outcome:
    """Train and evaluate, or continue, or find that all is there.

    Raises UserError if the corpus is too short, RunError if the run is held: nothing is written.
    """
    if current().first(lambda: folder.is_done(job.directory, job.settings["eval"])):
        say(f"already finished: {job.directory}")
        return Outcome(0)
    if job.begun_here is not None:
        say(f"train.precision=auto is {job.begun_here} here; begun in {job.precision}, this run stays so")
    with StopFlag() as stop:
        try:
            return _locked(job, overrides, stop)
        except InterruptedRunError:
            if not stop.guarded:
                say(f"{stop.name}: stopped before the first step; the same command begins again")
            return Outcome(stop.exit_code)


def _locked(job: TrainJob, overrides: list[str], stop: StopFlag) -> Outcome:
    """Tokenise, lock the directory, run, and write how it ended to status.json."""
    settings, directory, group = job.settings, job.directory, current()
    store = group.in_turn(lambda: prepare(settings["data"], settings["tokenizer"], facts=job.facts))
    check_lengths(
        store,
        split=job.evaluation.split,
        needed_tokens=max(job.evaluation.windows) + 1,
        context_length=settings["context_length"],
    )
    trained_bytes = byte_store(job, store)
    folder.refuse_links(directory)
    with locked(directory), folder.log_file(directory):
        if group.first(lambda: folder.is_done(directory, settings["eval"])):  # by another process, meanwhile
            return Outcome(0)
        before = folder.finished_config(directory)
        try:
            stop.guard()
            group.first(lambda: folder.forget_diverged(directory))
            # first: else new settings lie beside "finished"
            folder.write_status(directory, "running", overrides=overrides)
            folder.write_config(directory, settings)
            with group.watched():
                return _run(job, store, trained_bytes, stop)
        except InterruptedRunError:
            folder.write_end(directory, before, "interrupted", stop.name)
            say(f"{stop.name}: everything finished so far is saved; the same command continues")
            raise
        except BaseException as error:
            reason = error.problem if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
            if not isinstance(error, DivergedRunError):  # its status is written
                with suppress(OSError, RunError):  # a full disk must not hide the first reason
                    folder.write_end(directory, before, "failed", reason.partition("\n")[0])
            raise


def _run(job: TrainJob, store: TokenStore, trained_bytes: TokenStore | None, stop: StopFlag) -> Outcome:
    settings, directory = job.settings, job.directory
    model = build_model(settings, job.shape, store.vocab_size)
    windows, length = job.evaluation.windows, settings["context_length"]
    notes = corpus_notes(job.facts, job.evaluation.split, max(windows), length, store)
    for note in [*notes, *model.effective_encoding.warnings()]:
        log.log(logging.INFO if note in job.facts.notes else logging.WARNING, "%s", note)
    tracker = tracker_of(job, os.environ.get(SWEEP, settings["experiment_name"]))
    status = "failed"
    try:
        with compiled_blocks(model, settings["train"]["compile"] and compiler_works(job.device)):
            trained = _train(job, model, store, tracker, stop)
        if trained.status == "diverged":
            status = "diverged"
            folder.write_status(directory, "diverged", reason=trained.reason, step=trained.step)
            raise DivergedRunError(
                f"training diverged: {trained.reason}",
                hint="nothing was averaged in; try a smaller train.lr",
            )
        if trained.status == "interrupted":
            raise InterruptedRunError
        facts = run_facts(
            job,
            model,
            fingerprint=store.fingerprint,
            tokens=trained.tokens,
            steps=trained.step,
            seconds=trained.seconds,
            final_loss=trained.final_loss,
            peak_memory_bytes=peak_memory(job.device) if trained.here else None,
        )
        with stop.at_once():
            records = current().first(
                lambda: measure(job, model, store, step=trained.step, stop=stop, trained_bytes=trained_bytes)
            )
        folder.put_together(directory, facts, newer=trained.here)
        tracker.evaluation(folder.records_at(directory, trained.step))
        folder.write_status(directory, "finished", step=trained.step)
        status = "finished"
        return Outcome(0, records)
    except InterruptedRunError:
        status = "interrupted"
        raise
    finally:
        tracker.finish(status)


def _train(job: TrainJob, model: Decoder, store: TokenStore, tracker: Tracker, stop: StopFlag) -> Trained:
    settings, length = job.settings, job.settings["context_length"]
    counts, processes = count_parameters(model), current().size
    say(
        f"{spoken_name(settings['encoding'])}: {counts['total']:,} parameters, T={length}, "
        f"{job.steps} steps of {job.batch_windows * length} tokens, {job.precision} on {job.device}, "
        f"{f'{processes} processes, ' if processes > 1 else ''}"
        f"{settings['data']['name']} as {settings['tokenizer']['name']} -> {job.directory}"
    )
    tokenizer = build_tokenizer(settings["tokenizer"], job.facts)
    with shown("training", job.steps) as bar:

        def on_resume(step: int) -> None:
            folder.drop_metrics_after(job.directory, step)
            folder.drop_records_after(job.directory, step)
            bar.begin(step)
            if step:
                say(f"continuing at step {step} of {job.steps}")

        def on_log(progress: Progress) -> None:
            folder.append_metrics(job.directory, progress.metrics())
            tracker.log(progress.metrics(), progress.step)
            rate = f"{progress.tokens_per_second:,.0f} tokens/s"
            bar.update(progress.step, f"loss {progress.loss:.3f}  {rate}")

        return train(
            model,
            WindowSampler(store, length, settings["seed"]),
            job.optimization,
            steps=job.steps,
            batch_windows=job.batch_windows,
            context_length=length,
            seed=settings["seed"],
            precision=job.precision,
            device=job.device,
            checkpoints=job.directory / "checkpoints",
            checkpoint_seconds=settings["train"]["checkpoint_seconds"],
            log_every=settings["train"]["log_every"],
            provenance={
                "fingerprint": store.fingerprint,
                "tokenizer": store.tokenizer,
                "encoding": job.source,
                "run": {"encoding": settings["encoding"], "settings_hash": job.hash},
            },
            files={} if tokenizer.definition is None else {"tokenizer.json": tokenizer.definition},
            on_resume=on_resume,
            on_log=on_log,
            stop=stop,
        )
