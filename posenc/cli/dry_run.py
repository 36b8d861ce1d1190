"""`posenc train --dry-run`: what each job would take and where it would lie. Nothing is written."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rich.console import Console

from posenc.cli.estimate import SECONDS, estimate
from posenc.cli.planned import Planned, print_all, print_one
from posenc.cli.stand_in import refuse_to_fetch, store_for
from posenc.config.compose import ComposedJob, Jobs
from posenc.core.console import say
from posenc.core.errors import UserError
from posenc.core.memory_meter import resident
from posenc.data.hub_access import go_offline
from posenc.evaluation.eval_memory import OutOfMemoryError
from posenc.report.failures import DIVERGED, FINISHED
from posenc.report.table import color_of, width_of
from posenc.running.run_directory import read_status
from posenc.running.standing import is_finished
from posenc.running.sweep_jobs import each_once
from posenc.running.told import RETRY
from posenc.running.train_job import TrainJob
from posenc.running.validated import validated

# Not what defines what a run takes: jobs that differ in these, or in train.lr, alone share one estimate.
ALIKE = ("seed", "name", "experiment_name", "runs_dir", "tracking")
SECONDS_OF_ALL = 60.0  # for the estimates of a sweep: the more there are, the shorter each


def print_dry_run(composed: Jobs) -> int:
    """Validate every job, estimate, print on stdout; 0, or 1 where one does not fit into memory.

    Raises UserError as a real run would, RunError for a corpus or tokenizer that would have to be fetched.
    """
    go_offline()
    for number, one in enumerate(composed.jobs, 1):
        checked = _validated(one, number, len(composed.jobs))
        if len(composed.jobs) > 1:
            checked.facts.loaded = None
    jobs = [validated("train", one.settings) for one in each_once(composed).jobs]
    console = Console(
        width=width_of(sys.stdout), highlight=False, color_system="auto" if color_of(sys.stdout) else None
    )
    base, planned, busy = resident("VmRSS"), [], _other_work()
    known: dict[str, tuple[Any, ...]] = {}
    seconds = min(SECONDS, SECONDS_OF_ALL / len({_what_counts(job) for job in jobs}))
    for i, job in enumerate(jobs, 1):
        if len(jobs) > 1:
            say(f"[{i}/{len(jobs)}] {job.directory.name}")
        planned.append(_planned(job, base, known, seconds))
    if len(planned) == 1:
        print_one(console, planned[0])
    else:
        print_all(console, planned)
    if busy is not None:
        console.print(busy)
    return 1 if any(one.problem for one in planned) else 0


def _other_work() -> str | None:
    """What the machine's load says before anything is timed; None where it is idle, or does not say."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows
        return None
    cores = os.cpu_count() or 1
    if load < cores / 2:
        return None
    return f"the machine is at work (load {load:.1f}, {cores} cores): the times may be several times too long"


def _validated(job: ComposedJob, number: int, total: int) -> TrainJob:
    try:
        refuse_to_fetch(job.settings["data"])
        return validated("train", job.settings)
    except UserError as error:
        where = f"in job {number} of {total} ({' '.join(job.overrides)})"
        raise error.within(where) if total > 1 else error from None


def _what_counts(job: TrainJob) -> str:
    """Of a job's settings: what decides how long it takes."""
    settings = {name: value for name, value in job.settings.items() if name not in ALIKE}
    settings["train"] = {name: value for name, value in job.settings["train"].items() if name != "lr"}
    return json.dumps(settings, sort_keys=True, default=str)


def _planned(job: TrainJob, base: int | None, known: dict[str, tuple[Any, ...]], seconds: float) -> Planned:
    key = _what_counts(job)
    if key not in known:
        store, real = store_for(job.facts, job.settings["tokenizer"])
        try:
            known[key] = (estimate(job, store, seconds), real, store.vocab_size, None)
        except OutOfMemoryError as error:
            known[key] = (None, real, store.vocab_size, f"does not fit into memory: {error}")
    job.facts.loaded = None
    found, real, vocab_size, problem = known[key]
    state, step = _state(job)
    return Planned(job, state, step, found, real, vocab_size, base, problem)


def _state(job: TrainJob) -> tuple[str, int]:
    """`new`, `finished`, or how it would go on; and the steps that are done."""
    if not job.directory.is_dir():
        return "new", 0
    status = read_status(job.directory).get("status")
    if status == DIVERGED:
        return ("new", 0) if RETRY in os.environ else (DIVERGED, 0)
    steps = [int(path.name[5:]) for path in (job.directory / "checkpoints").glob("step-*") if path.is_dir()]
    step = min(job.steps, max(steps, default=0))
    if is_finished(job):
        return FINISHED, job.steps
    return f"{status or 'begun'}, would continue at step {step}", step
