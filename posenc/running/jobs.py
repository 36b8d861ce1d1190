"""Validate the jobs of a command, and run one of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from posenc.config.compose import ComposedJob, Jobs
from posenc.config.overrides import is_hydras
from posenc.core.console import say
from posenc.core.errors import RunError, UserError
from posenc.evaluation.extensions import NotForThisEncodingError
from posenc.report.writers import show_runs
from posenc.results.load import load_run
from posenc.results.schema import Record, target_set
from posenc.running.build import Job
from posenc.running.eval_job import eval_job
from posenc.running.invocation import Invocation
from posenc.running.measure import run_eval
from posenc.running.run_directory import HeldRunError
from posenc.running.subjects import hf_job
from posenc.running.train_job import TrainJob, run_train, train_job
from posenc.training.distributed import current

CheckedJob = tuple[ComposedJob, Job]  # as composed, and as validated
HELD = 75  # exit code of a sweep's job that finds its run held; EX_TEMPFAIL of sysexits.h


def new_job(command: str, settings: dict[str, Any]) -> Job:
    """Return the validated job of these settings, a TrainJob for `train`. Raises UserError."""
    if command == "train":
        return train_job(settings)
    return eval_job(settings) if settings["subject"] is None else hf_job(settings)


def check_jobs(command: str, composed: Jobs) -> list[CheckedJob]:
    """Return the jobs, every one validated. Raises UserError for the first that is wrong.

    In a sweep an extension that does not apply to a run's encoding is left out and named, unless all are.
    """
    count, kept, refused = len(composed.jobs), list[CheckedJob](), []
    for number, one in enumerate(composed.jobs, 1):
        try:
            job = new_job(command, one.settings)
            if count > 1:  # the documents of all jobs at once may be gigabytes
                job.facts.loaded = None
            kept.append((one, job))
        except NotForThisEncodingError as error:
            if count == 1:
                raise
            refused.append(error)
            measured = one.settings["run"] or one.settings["subject"]["path"]
            say(f"{measured}: left out: {error.value}: {error.problem}")
        except UserError as error:
            where = f"in job {number} of {count} ({' '.join(one.overrides)})"
            raise error.within(where) if count > 1 else error from None
    if not kept:
        raise refused[0]
    return kept


def seed_by_seed(checked: list[CheckedJob]) -> list[CheckedJob]:
    """Return the jobs of the first seed, then those of the next: a comparison exists early."""
    seeds = list(dict.fromkeys(one.settings.get("seed") for one, _ in checked))
    return sorted(checked, key=lambda pair: seeds.index(pair[0].settings.get("seed")))


def run_job(job: Job, overrides: list[str], invocation: Invocation) -> int:
    """Run one job; print its table unless it is part of a sweep. Returns its exit code."""
    try:
        if isinstance(job, TrainJob):
            current().connect(job.device, job.directory.name, job.batch_windows)
            outcome = run_train(job, [o for o in overrides if not is_hydras(o)], invocation)
        else:
            outcome = run_eval(job, invocation)
    except HeldRunError:
        if invocation.in_sweep:
            return HELD
        raise
    except SystemExit as error:  # of a plug-in: the run is not finished
        raise RunError(f"SystemExit: {error}") from error
    if outcome.exit_code == 0 and current().is_first and not invocation.in_sweep:
        show_run(job.directory, outcome.records)
    return outcome.exit_code


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
