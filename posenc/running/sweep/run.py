"""Run a sweep: its jobs as tasks, then the comparison and a list of what did not finish."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from posenc.config.overrides import CommandLine
from posenc.core.console import say
from posenc.core.machine import say_load
from posenc.core.run_states import FINISHED
from posenc.report.end_of_run import show_runs
from posenc.report.lines import cells_table
from posenc.results.comparison import compare_runs
from posenc.results.discovery import load_runs
from posenc.results.drafts import CompareRequest, protocols_of
from posenc.results.records import HEADLINE, REFERENCES
from posenc.results.runs import Run
from posenc.running.evaluate import targets_of
from posenc.running.invocation import Invocation
from posenc.running.jobs import CheckedJob, in_running_order
from posenc.running.run_directory import drop_leftovers_of
from posenc.running.sweep.lines import failure_lines, settled_line
from posenc.running.sweep.pool import WorkerPool
from posenc.running.sweep.resources import tasks_at_once_here, threads_of, visible_gpus
from posenc.running.sweep.task import SweepResult, SweepTask, TaskOutcome, make_tasks, outcome_on_disk
from posenc.running.sweep.time_left import estimate_sweep
from posenc.settings.tree import RunSettings, SweepSettings
from posenc.tracking import COMPARISON, TrackedRun, build_tracker, has_tables

Launch = Callable[[Sequence[SweepTask]], SweepResult]
Targets = set[tuple[str, str]]  # (protocol, hash of its targets)


def sweep_name(checked: Sequence[CheckedJob]) -> str:
    """Return the name of a sweep. The same jobs make the same name, so that trackers group them."""
    settings_texts = [checked_job.composed.settings_text for checked_job in checked]
    # Six digits tell the sweeps of one experiment apart, and a tracker shows the name as a group.
    digest = hashlib.sha256("\n".join(settings_texts).encode()).hexdigest()[:6]
    settings = checked[0].composed.settings
    name = settings.experiment_name if isinstance(settings, RunSettings) else "eval"
    return f"{name}-{digest}"


def run_sweep(
    command: str,
    line: CommandLine,
    checked: list[CheckedJob],
    invocation: Invocation,
    launch: Launch | None = None,
) -> int:
    """Run the jobs, print the comparison on stdout and the failures on stderr; return the exit code.

    The code is 0 if every job finished, 1 if one did not, and 130 or 143 after a signal, which ends the
    running jobs. A run that is finished or has diverged starts no process. `launch` runs the tasks elsewhere.
    """
    # All encodings by their first seed come first, so that a sweep that is stopped has a whole table.
    ordered = in_running_order(checked)
    tasks = make_tasks(command, line, ordered, retry=invocation.retry)
    outcomes: dict[str, TaskOutcome] = {}
    for task in tasks:
        outcome = outcome_on_disk(task)
        # Such a run needs no process, so a sweep that is typed again takes seconds.
        if outcome is not None:
            outcomes[task.name] = outcome
            drop_leftovers_of(task.directory)
            say(settled_line(task, outcome, "already finished"))
    open_tasks: list[SweepTask] = []
    open_jobs: list[CheckedJob] = []
    for task, checked_job in zip(tasks, ordered, strict=True):
        if task.name not in outcomes:
            open_tasks.append(task)
            open_jobs.append(checked_job)
    settings = ordered[0].composed.settings.sweep  # the jobs of a sweep share it
    assert settings is not None
    result = SweepResult()
    if open_tasks and launch is not None:
        result = launch(open_tasks)
    elif open_tasks:
        result = _pool_here(command, open_tasks, open_jobs, settings, invocation).run(len(outcomes))
    outcomes |= result.outcomes
    # Also after a signal: what is finished is worth a table.
    runs = _runs_to_compare(command, ordered)
    if runs:
        show_runs(runs, sys.stdout)
        _track_comparison(runs, ordered[0], invocation)
    for text in failure_lines(tasks, outcomes):
        say(text)
    if result.exit_code:
        return result.exit_code
    finished = [name for name, outcome in outcomes.items() if outcome.state == FINISHED]
    return 0 if len(finished) == len(tasks) else 1


def _pool_here(
    command: str,
    tasks: Sequence[SweepTask],
    checked: Sequence[CheckedJob],
    settings: SweepSettings,
    invocation: Invocation,
) -> WorkerPool:
    """Return the pool that runs the tasks on this machine, as many at once as it has room for."""
    at_once = tasks_at_once_here(tasks, settings)
    if tasks[0].device == "cpu":
        say_load(at_once * threads_of(tasks[0]))
    return WorkerPool(
        tasks,
        at_once=at_once,
        gpus=visible_gpus(),
        fail_fast=settings.fail_fast,
        sweep=invocation.sweep or "",
        estimate=estimate_sweep(tasks, checked, at_once) if command == "train" else None,
    )


def _runs_to_compare(command: str, checked: Sequence[CheckedJob]) -> list[Run]:
    """Return the runs of a sweep that are there; after `posenc eval` only with what it measures."""
    # A run that failed before its first step has no directory.
    directories = dict.fromkeys(checked_job.job.directory for checked_job in checked)  # each once, in order
    runs = load_runs([directory for directory in directories if directory.is_dir()])
    if command == "eval":
        targets_of_runs = _measured_targets(checked)
        runs = [_with_records_of(run, targets_of_runs[run.path]) for run in runs]
    return runs


def _track_comparison(runs: Sequence[Run], first: CheckedJob, invocation: Invocation) -> None:
    """Send the comparison of a sweep as a table, in a run of its own in the group of the sweep's runs.

    The same sweep finds that run again, by the state in its folder, and replaces the table.
    """
    job = first.job
    group = invocation.sweep
    if group is None or not has_tables(job.tracking):
        return
    measured = protocols_of(runs)
    # One table, since a tracker shows it beside the runs: that of the first protocol that was measured.
    protocol = measured[0] if measured else HEADLINE
    lines = cells_table(compare_runs(runs, CompareRequest(protocol)))
    if not lines:
        return
    name = f"{group}-comparison"
    folder = job.directory.parent.parent / ".sweeps" / name
    run = TrackedRun(name, group, [job.settings.experiment_name], {"sweep": group}, folder, COMPARISON)
    tracker = build_tracker(job.tracking, run)
    tracker.log_table("comparison", list(lines[0]), [list(line.values()) for line in lines])
    tracker.finish(FINISHED)


def _measured_targets(checked: Sequence[CheckedJob]) -> dict[Path, Targets]:
    """Return the targets that are measured of each run, with those of the reference on the same text."""
    targets: dict[Path, Targets] = {}
    for checked_job in checked:
        job = checked_job.job
        measured = targets_of(job)
        # References are scored on the same targets as the model, so their records have the same hash.
        references = {(name, targets_hash) for _, targets_hash in measured for name in REFERENCES}
        targets.setdefault(job.directory, set()).update(measured | references)
    return targets


def _with_records_of(run: Run, targets: Targets) -> Run:
    """Return the run with the records of these targets and no others."""
    records = [record for record in run.records if (record["protocol"], record["targets_hash"]) in targets]
    return replace(run, records=records)
