"""Validate the jobs of a command, and run one of them, or several as one model."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from posenc.config.compose import ComposedJob, Jobs, frozen
from posenc.config.overrides import is_hydras
from posenc.core.console import say
from posenc.core.errors import RunError, UserError, first_line
from posenc.evaluation.extensions import NotForThisEncodingError
from posenc.report.writers import show_runs
from posenc.results.load import load_run
from posenc.results.schema import Record, target_set
from posenc.running.build import Job
from posenc.running.eval_job import eval_job
from posenc.running.measure import run_eval
from posenc.running.run_directory import HeldRunError
from posenc.running.signals import SWEEP, StopFlag
from posenc.running.subjects import hf_job
from posenc.running.train_job import TrainJob, run_train, train_job, train_steps
from posenc.training.distributed import current
from posenc.training.loop import train_stacked

HELD = 75  # exit code of a sweep's job that finds its run held; EX_TEMPFAIL of sysexits.h


def validated(command: str, settings: dict[str, Any]) -> Any:
    """Return the Job of these settings, a TrainJob for `train`, checked once. Raises UserError."""
    return _validated(command, frozen(settings))


@functools.cache
def _validated(command: str, frozen_settings: str) -> Job:
    return new_job(command, json.loads(frozen_settings))


def new_job(command: str, settings: dict[str, Any]) -> Job:
    """Return the Job of these settings. Raises UserError."""
    if command == "train":
        return train_job(settings)
    return eval_job(settings) if settings["subject"] is None else hf_job(settings)


def applicable(command: str, composed: Jobs) -> Jobs:
    """Return the jobs, every one validated. Raises UserError for the first that is wrong.

    In a sweep an extension that does not apply to a run's encoding is left out and named, unless all are.
    """
    count, kept, refused = len(composed.jobs), [], []
    for number, job in enumerate(composed.jobs, 1):
        try:
            checked = validated(command, job.settings)
            if count > 1:  # the documents of all jobs at once may be gigabytes
                checked.facts.loaded = None
            kept.append(job)
        except NotForThisEncodingError as error:
            if count == 1:
                raise
            refused.append(error)
            measured = job.settings["run"] or job.settings["subject"]["path"]
            say(f"{measured}: left out: {error.value}: {error.problem}")
        except UserError as error:
            where = f"in job {number} of {count} ({' '.join(job.overrides)})"
            raise error.within(where) if count > 1 else error from None
    if not kept:
        raise refused[0]
    return dataclasses.replace(composed, jobs=kept)


def seed_by_seed(composed: Jobs) -> Jobs:
    """Return the jobs of the first seed, then those of the next: a comparison exists early."""
    seeds = list(dict.fromkeys(job.settings.get("seed") for job in composed.jobs))
    jobs = sorted(composed.jobs, key=lambda job: seeds.index(job.settings.get("seed")))
    return dataclasses.replace(composed, jobs=jobs)


def run_job(command: str, composed: ComposedJob, *, in_sweep: bool = False) -> int:
    """Run one job; print its table unless it is part of a sweep. Returns its exit code."""
    job = validated(command, composed.settings)
    try:
        if isinstance(job, TrainJob):
            current().connect(job.device, job.directory.name, job.batch_windows)
            outcome = run_train(job, [o for o in composed.overrides if not is_hydras(o)])
        else:
            outcome = run_eval(job)
    except HeldRunError:
        if SWEEP in os.environ:
            return HELD
        raise
    except SystemExit as error:  # of a plug-in: the run is not finished
        raise RunError(f"SystemExit: {error}") from error
    if outcome.exit_code == 0 and current().is_first and not in_sweep and SWEEP not in os.environ:
        show_run(job.directory, outcome.records)
    return outcome.exit_code


def run_stack(composed: Jobs) -> int:
    """Train the jobs as one model, then measure each; return 0, 1 if one fails, or the code of a signal."""
    with StopFlag() as stop:
        steps, places = [], []
        for one in composed.jobs:
            job = validated("train", {**one.settings, "train": {**one.settings["train"], "compile": "false"}})
            steps.append(train_steps(job, [o for o in one.overrides if not is_hydras(o)], stop))
            places.append(job.directory.name)
        ends = train_stacked(
            steps,
            lambda error: say(f"trained one after the other, they cannot share a pass: {first_line(error)}"),
        )
    failed = [(place, end) for place, end in zip(places, ends, strict=True) if isinstance(end, Exception)]
    for place, error in failed:
        text = error.text() if isinstance(error, UserError | RunError) else f"{type(error).__name__}: {error}"
        say(f"{place}: {text}")
    return stop.exit_code or int(bool(failed))


def show_run(directory: Path, records: list[Record] | None) -> None:
    """Print a run's table, of these records or of all; with an extension also the values without it."""
    run = load_run(directory)
    if records is not None and run.problem is None:
        extended = [r for r in records if r["extend"] is not None]
        same = {(r["protocol"], r["checkpoint_step"], target_set(r)) for r in records}
        plain = [
            r
            for r in run.records
            if r["extend"] is None and (r["protocol"], r["checkpoint_step"], target_set(r)) in same
        ]
        run.records = [*plain, *extended] if extended else records
    show_runs([run], sys.stdout, saved=directory)
