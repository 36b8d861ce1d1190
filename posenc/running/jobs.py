"""Validate the jobs of a command, and run one of them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from posenc.config.compose import ComposedJob, Jobs
from posenc.config.keys import is_hydras
from posenc.core.console import say
from posenc.core.errors import RunError, UserError
from posenc.core.progress import end_starting, long_loop
from posenc.evaluation.extensions import NotForThisEncodingError
from posenc.report.end_of_run import show_runs
from posenc.results.measurements import target_set_of
from posenc.results.records import Record
from posenc.results.runs import load_run
from posenc.running.evaluate import run_eval
from posenc.running.invocation import Invocation
from posenc.running.job import Job
from posenc.running.locks import HeldRunError
from posenc.running.plan_evaluation import plan_evaluation
from posenc.running.plan_hf import plan_hf
from posenc.running.plan_training import plan_training
from posenc.running.train import run_train
from posenc.settings.tree import EvalCommandSettings, RunSettings
from posenc.training.distributed import current

HELD = 75  # exit code of a sweep's job whose run another process holds; EX_TEMPFAIL of sysexits.h


@dataclass(frozen=True)
class CheckedJob:
    """Hold a job as it was composed and as it was validated."""

    composed: ComposedJob
    job: Job


def plan_job(
    settings: RunSettings | EvalCommandSettings, *, only_estimate: bool = False, is_alone: bool = True
) -> Job:
    """Return the validated job of composed settings. Raises UserError.

    `only_estimate` is for a dry run; `is_alone` is False for a job of a sweep.
    """
    if isinstance(settings, RunSettings):
        return plan_training(settings)
    if settings.subject is None:
        return plan_evaluation(settings, keeps_records=not only_estimate)
    return plan_hf(settings, only_estimate=only_estimate, is_alone=is_alone)


def check_jobs(composed: Jobs, *, only_estimate: bool = False) -> list[CheckedJob]:
    """Return the validated jobs; `only_estimate` for a dry run. Raises UserError for the first that is wrong.

    In a sweep, jobs whose extension does not apply to the encoding are left out with a line on stderr. If all
    are, the first is refused.
    """
    count = len(composed.jobs)
    checked: list[CheckedJob] = []
    refusals: list[NotForThisEncodingError] = []
    with long_loop("checking jobs", count) as progress:
        for number, entry in enumerate(composed.jobs, 1):
            progress.update(number - 1, "")
            try:
                job = plan_job(entry.settings, only_estimate=only_estimate, is_alone=count == 1)
            except NotForThisEncodingError as error:
                if count == 1:
                    raise
                refusals.append(error)
                say(f"{_what_is_extended(entry)}: left out: {error.value}: {error.problem}")
            except UserError as error:
                if count == 1:
                    raise
                # One command line made all jobs, so the user must see which combination of values is refused.
                position = f"in job {number} of {count} ({' '.join(entry.overrides)})"
                raise error.within(position) from None
            else:
                if count > 1:  # the documents of all jobs at once may be gigabytes
                    job.corpus_facts.release()
                checked.append(CheckedJob(entry, job))
    if not checked:
        raise refusals[0]
    return checked


def _what_is_extended(entry: ComposedJob) -> str:
    """Return the path of the run or of the model that a job measures; of a training its overrides."""
    settings = entry.settings
    if isinstance(settings, RunSettings):
        return " ".join(entry.overrides)
    if settings.run is not None:
        return settings.run
    assert settings.subject is not None
    return str(settings.subject.parameters["path"])


def in_running_order(checked: list[CheckedJob]) -> list[CheckedJob]:
    """Return the jobs of the first seed, then those of the next, so that a comparison exists early.

    Of one seed, models as trained come before extended ones, which are compared with them and take over
    their numbers where nothing changes.
    """
    seeds = list(dict.fromkeys(entry.job.settings.seed for entry in checked))

    def place(entry: CheckedJob) -> tuple[int, bool]:
        return seeds.index(entry.job.settings.seed), entry.job.evaluation.is_extended

    # The sort is stable: otherwise the jobs keep the order of the command line.
    return sorted(checked, key=place)


def run_job(job: Job, overrides: list[str], invocation: Invocation) -> int:
    """Run one job; print its table unless it is part of a sweep. Returns its exit code."""
    try:
        # Only trainings are shared among processes. An evaluation runs in the first one alone.
        if job.training is not None:
            current().connect(job.device, job.directory.name, job.training.batch_windows)
            # status.json keeps the overrides for the command that continues
            # the run. Hydra's part is of this process.
            own_overrides = [text for text in overrides if not is_hydras(text)]
            outcome = run_train(job, own_overrides, invocation)
        else:
            outcome = run_eval(job, invocation)
    # The sweep tries the run again later, so that the same sweep may be started twice.
    except HeldRunError:
        if invocation.in_sweep:
            return HELD
        raise
    except SystemExit as error:  # a plug-in may call sys.exit, also with 0, and the run is not finished
        raise RunError(f"SystemExit: {error}") from error
    # a sweep prints one comparison of all runs at its end
    if outcome.exit_code == 0 and current().is_first and not invocation.in_sweep:
        show_run(job.directory, outcome.records)
    return outcome.exit_code


def show_run(directory: Path, records: list[Record] | None) -> None:
    """Print the run's table: of `records`, or of all stored ones if None.

    Records with an extension are shown beside those of the model as trained, on the same targets.
    """
    end_starting()  # nothing was shown after it if the run was finished before
    run = load_run(directory)
    if records is not None and run.problem is None:
        run = replace(run, records=_beside_those_as_trained(records, run.records))
    show_runs([run], sys.stdout, saved=directory)


def _beside_those_as_trained(records: list[Record], stored: list[Record]) -> list[Record]:
    """Return records with an extension behind the stored ones as trained, of the same targets."""
    extended = [record for record in records if record["extend"] is not None]
    if not extended:
        return records
    measured = {_targets(record) for record in records}
    plain = [record for record in stored if record["extend"] is None and _targets(record) in measured]
    return [*plain, *extended]


def _targets(record: Record) -> tuple[object, ...]:
    return record["protocol"], record["checkpoint_step"], target_set_of(record), record.get("precision")
