"""Run the jobs of a command line: compose and validate all of them first, then run, then show the table."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from posenc.errors import RunError, UserError
from posenc.jobs.compose import CommandLine, Composed, compose_jobs, parse
from posenc.jobs.signals import CODES
from posenc.report.progress import say

if TYPE_CHECKING:
    from posenc.results.records import Record

SWEEP = "POSENC_SWEEP"  # environment: the sweep's name, set for the process of each of its jobs

_stopped_by: list[int] = []  # signals that this process got while a job of its sweep ran


def run_command(command: str, arguments: list[str]) -> int:
    """`posenc train ...` or `posenc eval ...` from arguments to exit code. Raises UserError, RunError."""
    line = parse(arguments)
    # Hydra's own parser wants all flags before or after the overrides
    arguments = [*(a for a in arguments if a not in line.overrides), *line.overrides]
    if line.asks_hydra:
        _call_hydra(command, arguments)
        return 0
    _refuse_several_processes()
    composed = compose_jobs(command, line)
    count = len(composed.jobs)
    for number, job in enumerate(composed.jobs, 1):
        try:
            validated(command, _frozen(job.settings))
        except UserError as error:
            where = f"in job {number} of {count} ({' '.join(job.overrides)})"
            raise error.within(where) if count > 1 else error from None
    if not composed.sweep:
        codes = _call_hydra(command, arguments)
        return codes[-1] if codes else 1
    listed = json.dumps([job.settings for job in composed.jobs], sort_keys=True)
    name = str(composed.jobs[0].settings.get("experiment_name", "eval"))
    os.environ[SWEEP] = f"{name}-{hashlib.sha256(listed.encode()).hexdigest()[:6]}"
    if composed.basic:
        jobs = enumerate(composed.jobs, 1)
        codes = [_in_own_process(command, line, job, f"[{number}/{count}]") for number, job in jobs]
    else:
        codes = _call_hydra(command, arguments)
    return _end_of_sweep(command, composed.jobs, failed=any(codes))


def validated(command: str, frozen: str) -> Any:
    """The validated job of settings written as JSON; each is validated once in a process."""
    return _validated(command, frozen)


@functools.cache
def _validated(command: str, frozen: str) -> Any:
    settings = json.loads(frozen)
    if command == "train":
        from posenc.jobs.validate import train_job

        return train_job(settings)
    from posenc.jobs.eval_job import eval_job

    return eval_job(settings)


def _frozen(settings: dict[str, Any]) -> str:
    return json.dumps(settings)


def run_job(command: str, settings: dict[str, Any], *, in_sweep: bool) -> int:
    """One job in this process; prints its table unless it is part of a sweep. Returns its exit code."""
    try:
        job = validated(command, _frozen(settings))
        if command == "train":
            from posenc.jobs.train_job import run_train

            outcome = run_train(job)
        else:
            from posenc.jobs.eval_job import run_eval

            outcome = run_eval(job)
    except (UserError, RunError) as error:
        say(error.text())
        return error.exit_code
    except Exception as error:  # a plug-in's, or our own fault: the run's log has the traceback
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        say(RunError(f"{type(error).__name__}: {error}", hint="--debug shows where").text())
        return 1
    if outcome.exit_code == 0 and not in_sweep and SWEEP not in os.environ:
        show_run(job.directory, outcome.records)
    return outcome.exit_code


def show_run(directory: Path, records: list[Record] | None) -> None:
    """The run's own table on stdout: of these records, or of all that it has."""
    from posenc.report.table import show_run as show
    from posenc.results.load import load_run

    run = load_run(directory)
    if records is not None and run.problem is None:
        run.records = records
    show(run, "table", "nats", sys.stdout)


def _refuse_several_processes() -> None:
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes not in ("", "1"):
        raise UserError(
            "WORLD_SIZE", processes, "training by several processes is not there yet", allowed="1"
        )


def _in_own_process(command: str, line: CommandLine, job: Composed, label: str) -> int:
    """One job of a sweep as a process of its own, so that its death is its own; signals are passed on.

    Returns its exit code; why it failed stands in its run directory. Once a signal came, no further job
    starts.
    """
    if _stopped_by:
        return 0
    say(f"\n{label} {' '.join(job.overrides)}")
    elsewhere = [] if line.config_dir is None else ["--config-dir", line.config_dir]
    # a preset may ask for a sweep: a job is never one
    words = [sys.executable, "-m", "posenc", command, *elsewhere, *job.overrides, "hydra.mode=RUN"]
    process = subprocess.Popen(words)

    def forward(signum: int, frame: FrameType | None) -> None:
        _stopped_by.append(signum)
        if process.poll() is None:
            process.send_signal(signum)

    before = {signum: signal.signal(signum, forward) for signum in CODES}
    try:
        code = process.wait()
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    if code < 0:
        say(f"{label} was killed by {signal.Signals(-code).name}")
    return code


def _end_of_sweep(command: str, jobs: list[Composed], *, failed: bool) -> int:
    directories = list(dict.fromkeys(validated(command, _frozen(job.settings)).directory for job in jobs))
    failed = _show_sweep(directories) or failed
    if _stopped_by:
        return CODES[signal.Signals(_stopped_by[0])]
    return 1 if failed else 0


def _show_sweep(directories: list[Path]) -> bool:
    """The comparison on stdout and every failure on stderr; whether there was one."""
    from posenc.report.failures import failures_lines
    from posenc.report.table import show
    from posenc.results.comparison import compare
    from posenc.results.load import load_runs

    missing = [path for path in directories if not path.is_dir()]
    runs = load_runs([path for path in directories if path.is_dir()])
    if any(run.records for run in runs):
        # a sweep may well vary what a ranking must share (T, say): then the column says so
        show(compare(runs, "fixed-target", "nats", True), "table", sys.stdout)
    lines = [*failures_lines(runs), *(f"{path.name}: never started" for path in missing)]
    for line in lines:
        say(line)
    return bool(lines)


def _call_hydra(command: str, arguments: list[str]) -> list[int]:
    """hydra.main with these arguments; the exit codes of the jobs it ran here."""
    from posenc.jobs import hydra_mains

    before, sys.argv = sys.argv, [f"posenc {command}", *arguments]
    try:
        hydra_mains.MAINS[command]()
    finally:
        sys.argv = before
    return hydra_mains.exit_codes
