"""Validate composed settings, then train, evaluate and write results.json (`posenc train`).

All that can be wrong is found before anything is tokenised or written.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from posenc.config.checks import (
    check_evaluation,
    check_key_tokens,
    check_length_schedule,
    check_name,
    check_positions_reach,
    check_runs_dir,
)
from posenc.core.console import say, shown
from posenc.core.errors import RunError, UserError, safe_name
from posenc.core.machine import compiler_works, peak_memory, say_load
from posenc.core.paths import expanded
from posenc.core.signature import between, whole
from posenc.data import (
    CorpusFacts,
    PlantedSampler,
    ScheduledSampler,
    TokenStore,
    WindowSampler,
    WindowStage,
    absolute_data,
    absolute_tokenizer,
    build_tokenizer,
    check_plant,
    check_tokenizer,
    corpus_notes,
    inspect,
    plant_of,
    vocabulary,
)
from posenc.model.decoder import Decoder, count_parameters
from posenc.results.load import Run, load_runs, spoken_name
from posenc.results.rows import as_trained
from posenc.results.schema import HEADLINE
from posenc.running import run_directory as folder
from posenc.running.build import Job, StepPlan, build_model, check_step, code_of, run_facts
from posenc.running.eval_job import Initial, begin_with, check_fit, initial_run
from posenc.running.invocation import Invocation
from posenc.running.measure import Corpus, Outcome, measure, tokenised, tracked
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.tracking import Tracker, check_tracking
from posenc.training.checkpoint import CheckpointPlan, Provenance
from posenc.training.device import compiled_blocks
from posenc.training.distributed import current
from posenc.training.loop import Callbacks, LoggedStep, Trained, TrainingPlan, train

log = logging.getLogger(__name__)
UNSCHEDULED = ("length_schedule", None)  # not stored: earlier runs do not have it
TUNED = "tuned"  # `train.lr=tuned`: the rate that did best on validation documents in `experiment=tuning`
TUNING = "tuning"  # the experiment whose runs are looked at, below runs_dir
FEWEST = 2  # rates to choose from


@dataclass(frozen=True, kw_only=True)
class TrainJob(Job, StepPlan):
    """A validated training run."""

    source: dict[str, Any]  # the code of its encoding, for checkpoints
    steps: int
    schedule: list[tuple[int, int]]  # stages of the windows: the step at which one ends, and its length
    initial: Initial | None  # the weights that it begins with; None: drawn from the seed
    begun_here: str | None  # what `auto` would be here, where it was another when this run was begun


def train_job(settings: dict[str, Any]) -> TrainJob:
    """Return the validated job of composed `train` settings. Raises UserError."""
    if settings["train"]["lr"] == TUNED:
        return train_job(_with_tuned_rate(settings))
    train, initial = {k: v for k, v in settings["train"].items() if (k, v) != UNSCHEDULED}, None
    if train["init"] is not None:
        initial = initial_run(train["init"], settings["tokenizer"], settings["plugins"])
        train = {**train, "init": str(initial.directory.resolve()), "began": initial.about}
        settings = {**settings, "train": train}
    plan = check_step(settings)
    if initial is not None:
        check_fit(initial, plan.outline)
    parts, length = plan.parts, plan.parts["context_length"]
    whole("train.log_every", train["log_every"], least=1)
    between("train.checkpoint_seconds", train["checkpoint_seconds"], 0)
    evaluation = check_evaluation(settings["eval"], length)
    check_name("experiment_name", settings["experiment_name"])
    if settings["name"] is not None:
        check_name("name", settings["name"])
    place = expanded(settings["runs_dir"]) / settings["experiment_name"]
    check_runs_dir(settings["runs_dir"], place, writing=False)
    check_tracking(settings["tracking"])
    check_tokenizer(settings["tokenizer"])
    longest = max(evaluation.windows)
    check_positions_reach(plan.outline, longest)
    asked = evaluation.recall.pairs if evaluation.recall and "recall" in evaluation.protocols else ()
    steps = max(1, round(plan.tokens / (plan.batch_windows * length)))
    schedule = check_length_schedule(train.get("length_schedule"), length, plan.batch_windows, steps)
    check_plant(settings["data"].get("plant"), schedule[0][1], asked)
    facts = inspect(
        settings["data"],
        settings["tokenizer"],
        splits=evaluation.splits,
        needed_tokens=longest + 1,
        context_length=length,
    )
    check_key_tokens(evaluation, facts.fingerprint, settings["tokenizer"]["name"])
    of_train = {"tokens": plan.tokens, "batch_tokens": plan.batch_tokens, "compile": plan.compile}
    of_eval = {key: getattr(evaluation, key) for key in ("max_targets", "batch_tokens", "key_tokens")}
    resolved = {
        **{key: value for key, value in settings.items() if key not in ("extend", "sweep")},
        **parts,
        "data": absolute_data(settings["data"]),
        "tokenizer": absolute_tokenizer(settings["tokenizer"]),
        "model": {**settings["model"], "name": plan.shape.name},
        "train": {**train, **of_train},
        "eval": {**settings["eval"], **of_eval},
    }
    source = code_of(parts, plan.outline)
    names = [safe_name(name) for name in (as_trained(resolved).replace(" -> ", "-to-"), plan.shape.name)]
    readable = settings["name"] or f"{'-'.join(names)}-T{length}-s{parts['seed']}"

    def run_in(precision: str) -> tuple[dict[str, Any], str, Path]:
        """Return the settings, hash and directory of this run in a precision."""
        those = {**resolved, "train": {**resolved["train"], "precision": precision}}
        digest = run_hash(those, facts, source)
        return those, digest, _directory(place, readable, digest)

    precision, found = plan.precision, run_in(plan.precision)
    if train["precision"] == "auto" and not found[-1].is_dir():
        other = "fp32" if precision == "bf16" else "bf16"
        if (begun := run_in(other))[-1].is_dir():  # on another machine: what `auto` meant there stays
            precision, found = other, begun
    resolved, digest, directory = found
    if not directory.is_dir():  # one that is there may be finished, and is then only read
        check_runs_dir(settings["runs_dir"], place, writing=True)
    return TrainJob(
        **{**vars(plan), "precision": precision},
        settings=resolved,
        directory=directory,
        hash=digest,
        data=resolved["data"],
        tokenizer=resolved["tokenizer"],
        tracking=resolved["tracking"],
        source=source,
        facts=facts,
        initial=initial,
        steps=steps,
        schedule=schedule,
        begun_here=None if precision == plan.precision else plan.precision,
        evaluation=evaluation,
    )


def _with_tuned_rate(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the rate of the lowest mean loss at T on validation documents, and why it.

    A run of `experiment=tuning` counts if it is finished and only its rate and seed are others. Raises
    UserError where there are fewer than two rates, and for a seed that they were chosen by.
    """
    any_rate = train_job({**settings, "train": {**settings["train"], "lr": 1.0}})
    place, losses, seeds = expanded(settings["runs_dir"]) / TUNING, defaultdict(list), set[int]()
    for run in load_runs([str(place)]) if place.is_dir() else []:
        rate, loss = ((run.config or {}).get("train") or {}).get("lr"), validation_loss(run)
        if run.state != "finished" or run.seed is None or loss is None:
            continue
        if isinstance(rate, int | float):
            train = {**any_rate.settings["train"], "lr": float(rate)}
            those = {**any_rate.settings, "seed": run.seed, "train": train}
            if run.name[-8:] == run_hash(those, any_rate.facts, any_rate.source):
                losses[float(rate)].append(loss)
                seeds.add(run.seed)
    if len(losses) < FEWEST:
        problem = f"{len(losses)} rates were tried with these settings below {place}"
        hint = "posenc train -m experiment=tuning encoding=NAME, with the settings of this run"
        raise UserError("train.lr", "tuned", problem, hint=hint)
    if (seed := any_rate.settings["seed"]) in seeds:
        problem = "the rate was chosen by this seed, so its loss would flatter it"
        raise UserError("seed", seed, problem, allowed=f"not {', '.join(map(str, sorted(seeds)))}")
    best = min(losses, key=lambda rate: sum(losses[rate]) / len(losses[rate]))
    tried, by = (" ".join(f"{one:g}" for one in sorted(values)) for values in (losses, seeds))
    if best in (min(losses), max(losses)):
        say(f"train.lr=tuned: {best:g} is at the end of those tried ({tried}); try further ones")
    words = f"best of {tried} on validation documents, seeds {by}"
    return {**settings, "train": {**settings["train"], "lr": best, "tuned": words}}


def validation_loss(run: Run) -> float | None:
    """Return the loss at T on validation documents, None if it was not measured."""
    wanted = HEADLINE, "validation", 1
    there = [r["nats"] for r in run.records if (r["protocol"], r["split"], r["multiple"]) == wanted]
    return next((nats for nats in there if nats is not None), None)


def _directory(place: Path, readable: str, digest: str) -> Path:
    """Return the run directory with this hash, whatever its name; of copies the one with this name."""
    named = place / f"{readable}-{digest}"
    there = sorted(path for path in place.glob(f"*-{digest}") if path.is_dir())
    return named if named in there else next(iter(there), named)


def run_hash(settings: dict[str, Any], facts: CorpusFacts, source: dict[str, Any]) -> str:
    """Return eight hex digits of what defines a run; not device, compile, tracking, evaluation or names."""
    train = {key: settings["train"][key] for key in ("tokens", "batch_tokens", "lr", "precision")}
    if (schedule := settings["train"].get("length_schedule")) is not None:
        train["length_schedule"] = schedule
    model = {key: value for key, value in settings["model"].items() if key != "name" and value is not None}
    tokenizer = settings["tokenizer"]
    if tokenizer["name"] == "hf":  # its file may change under the same name; bpe follows from the corpus
        tokenizer = build_tokenizer(tokenizer, facts).identity()
    identity = {
        "model": model,
        "encoding": settings["encoding"],
        "source": source,
        "attention": settings["attention"],
        "positions": settings["positions"],
        "optim": settings["optim"],
        "train": train,
        "context_length": settings["context_length"],
        "seed": settings["seed"],
        "tokenizer": {key: value for key, value in tokenizer.items() if key != "path"},
        "corpus": facts.identity,
    }
    if (began := settings["train"].get("began")) is not None:
        identity["init"] = {key: began[key] for key in ("run", "step")}
    if "extend" in settings:
        identity["extend"] = settings["extend"]
    if (plant := settings["data"].get("plant")) is not None:
        identity["plant"] = plant
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


class DivergedRunError(RunError):
    """Loss or gradient are no longer finite; status.json says `diverged`, which is final without --retry."""

    status = "diverged"


def run_train(job: TrainJob, overrides: list[str], invocation: Invocation) -> Outcome:
    """Train and evaluate, or continue, or find that all is there.

    Raises UserError if the corpus is too short, RunError if the run is held: nothing is written.
    """
    if current().first(lambda: folder.is_done(job.directory, job.settings["eval"], invocation.retry)):
        say(f"already finished: {job.directory}")
        return Outcome(0)
    if job.begun_here is not None:
        say(f"train.precision=auto is {job.begun_here} here; begun in {job.precision}, this run stays so")
    with StopFlag() as stop:
        try:
            return _locked(job, overrides, invocation, stop)
        except InterruptedRunError:
            saved = "everything finished so far is saved; the same command continues"
            fresh = "stopped before the first step; the same command begins again"
            say(f"{stop.name}: {saved if stop.guarded else fresh}")
            return Outcome(stop.exit_code)


def _locked(job: TrainJob, overrides: list[str], invocation: Invocation, stop: StopFlag) -> Outcome:
    """Tokenise, lock the directory, run, and write how it ended to status.json."""
    settings, directory, group = job.settings, job.directory, current()
    corpus = tokenised(job, settings["context_length"])
    folder.refuse_links(directory)
    with folder.locked(directory, waits=invocation.waits), folder.log_file(directory):
        # another process may have finished it meanwhile
        if group.first(lambda: folder.is_done(directory, settings["eval"], invocation.retry)):
            return Outcome(0)
        # what was finished and is to be measured further stays so, with its settings, until that is done
        more = group.first(lambda: folder.was_finished(directory))
        stop.guard()
        folder.forget_diverged(directory)
        noted = nullcontext() if more else folder.status_kept(directory, stop, overrides=overrides)
        with noted, group.watched():
            if not more:
                folder.write_config(directory, settings)
            return _run(job, corpus, invocation, stop)


def _run(job: TrainJob, corpus: Corpus, invocation: Invocation, stop: StopFlag) -> Outcome:
    settings, directory, store = job.settings, job.directory, corpus[0]
    model = build_model(settings, job.shape, vocabulary(settings["data"].get("plant"), store))
    if job.initial is not None:
        begin_with(job.initial, job.directory / "checkpoints", model)
    windows, length = job.evaluation.windows, settings["context_length"]
    notes = corpus_notes(job.facts, job.evaluation.split, max(windows), length, store)
    for note in [*notes, *model.effective_encoding.warnings()]:
        log.log(logging.INFO if note in job.facts.notes else logging.WARNING, "%s", note)
    with tracked(job, invocation.sweep or settings["experiment_name"]) as tracker:
        with compiled_blocks(model, settings["train"]["compile"] and compiler_works(job.device)):
            trained = _train(job, model, store, tracker, invocation, stop)
        if trained.status == "diverged":
            folder.write_status(directory, "diverged", reason=trained.reason, step=trained.step)
            hint = "nothing was averaged in; try a smaller train.lr"
            raise DivergedRunError(f"training diverged: {trained.reason}", hint=hint)
        if trained.status == "interrupted":
            raise InterruptedRunError
        peak = peak_memory(job.device) if trained.advanced else None
        how = {**asdict(trained), "fingerprint": store.fingerprint}
        facts = run_facts(job, model, how, trained.step, peak)
        records = measure(job, model, corpus, facts, stop, newer=trained.advanced)
        tracker.evaluation(folder.records_at(directory, trained.step))
        folder.write_config(directory, settings)
        folder.write_status(directory, "finished", step=trained.step)
        return Outcome(0, records)


def _train(
    job: TrainJob,
    model: Decoder,
    store: TokenStore,
    tracker: Tracker,
    invocation: Invocation,
    stop: StopFlag,
) -> Trained:
    settings, length = job.settings, job.settings["context_length"]
    counts, processes = count_parameters(model), current().size
    say(
        f"{spoken_name(settings['encoding'])}: {counts['total']:,} parameters, T={length}, "
        f"{job.steps} steps of {job.batch_windows * length} tokens, {job.precision} on {job.device}, "
        f"{f'{processes} processes, ' if processes > 1 else ''}"
        f"{settings['data']['name']} as {settings['tokenizer']['name']} -> {job.directory}"
    )
    alone_on_cpu = job.device.type == "cpu" and processes == 1
    if alone_on_cpu and not invocation.in_sweep:  # a sweep says it for all its jobs
        say_load(torch.get_num_threads())
    tokenizer, plant = build_tokenizer(settings["tokenizer"], job.facts), settings["data"].get("plant")

    def sampler_of(length: int) -> WindowSampler:
        if plant is None:
            return WindowSampler(store, length, settings["seed"])
        return PlantedSampler(store, length, settings["seed"], plant_of(plant, store))

    sampler = ScheduledSampler(length, [WindowStage(end, own, sampler_of(own)) for end, own in job.schedule])
    files = {} if tokenizer.definition is None else {"tokenizer.json": tokenizer.definition}
    with shown("training", job.steps) as bar:

        def on_resume(step: int) -> None:
            folder.drop_after(job.directory, step)
            bar.begin(step)
            if step:
                say(f"continuing at step {step} of {job.steps}")

        def on_log(logged: LoggedStep) -> None:
            folder.append_metrics(job.directory, logged.metrics())
            tracker.log(logged.metrics(), logged.step)
            rate = f"{logged.tokens_per_second:,.0f} tokens/s"
            recall = "" if logged.recall_loss is None else f"  recall {logged.recall_loss:.3f}"
            loss = logged.loss if logged.natural_loss is None else logged.natural_loss
            bar.update(logged.step, f"loss {loss:.3f}{recall}  {rate}")

        plan = TrainingPlan(
            steps=job.steps,
            batch_windows=job.batch_windows,
            context_length=length,
            seed=settings["seed"],
            precision=job.precision,
            device=job.device,
            log_every=settings["train"]["log_every"],
            checkpoints=CheckpointPlan(
                folder=job.directory / "checkpoints",
                seconds=settings["train"]["checkpoint_seconds"],
                provenance=Provenance(
                    fingerprint=store.fingerprint,
                    tokenizer=store.tokenizer,
                    encoding=job.source,
                    run={"encoding": settings["encoding"], "settings_hash": job.hash},
                ),
                files=files,
            ),
        )
        return train(model, sampler, job.optimization, plan, Callbacks(on_resume, on_log), stop)
