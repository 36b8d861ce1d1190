"""Run a sweep through Slurm by hydra-submitit-launcher: submit what is open as one array, wait, note ends.

Of submitit this uses the submission, the requeueing and the files of results. Whether jobs are over is asked
of Slurm's queue: submitit asks its accounting, and on a cluster without one it waits for ever.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from posenc.config.compose import initialized, of_the_sweep, plain_settings
from posenc.config.hydra_adapter import launcher_of
from posenc.config.overrides import CommandLine, is_hydras, quoted
from posenc.core.console import say
from posenc.core.errors import RunError, UserError, first_line, visible
from posenc.running.jobs import new_job, run_job
from posenc.running.signals import CODES, WAIT, InterruptedRunError, StopFlag, report_error
from posenc.running.sweep import Job

GO_ON = "what was submitted goes on (posenc runs); when it has ended, the same command continues"
SEEN_WITHIN = 15.0  # seconds in which what another machine wrote is visible here
QUEUE_SECONDS = 10.0  # between two looks at Slurm's queue


def launch(command: str, line: CommandLine, chosen: str, jobs: Sequence[Job]) -> int:
    """Submit the jobs, wait until the queue has none of them, note how they ended.

    Returns 0, or the exit code of a signal, which ends the waiting only. Raises UserError without Slurm.
    """
    with initialized(line.config_dir) as search, StopFlag() as stop:
        runs = jobs[0].place.parents[1] if command == "train" else Path("runs")
        overrides = [*search, *of_the_sweep(line)]
        if command == "train":  # the launcher's files go there
            overrides.append(f"runs_dir={quoted(str(runs))}")
        launcher, config = launcher_of(command, overrides, partial(run_here, command))
        if not config.hydra.launcher._target_.endswith(".SlurmLauncher"):
            allowed = ["basic", "slurm"]
            raise UserError("hydra/launcher", chosen, "is no launcher of posenc's sweeps", allowed=allowed)
        _ask_slurm(chosen)
        try:
            began = time.time()
            submitted = _submit(launcher, jobs, runs / ".sweeps")
            while _in_queue(submitted):
                time.sleep(QUEUE_SECONDS)
            for job, one in zip(jobs, submitted, strict=True):
                job.began = began
                code, end = _code(one), time.monotonic() + SEEN_WITHIN
                while code == 0 and not job.is_finished and time.monotonic() < end:
                    time.sleep(0.5)
                job.end(code)
        except InterruptedRunError:
            say(f"{stop.name}: {GO_ON}")
        return stop.exit_code


def _ask_slurm(chosen: str) -> None:
    """Raise UserError where there is no Slurm, or no controller that answers."""
    problem = "there is no sbatch on this machine"
    if shutil.which("sbatch") is not None:
        asked = subprocess.run(["sinfo", "--noheader"], capture_output=True, text=True, check=False)
        problem = f"Slurm does not answer: {visible(asked.stderr.strip())}" if asked.returncode else ""
    if problem:
        hint = "give the command where Slurm's commands work; without it the sweep runs here"
        raise UserError("hydra/launcher", chosen, problem, hint=hint)


def _submit(launcher: Any, jobs: Sequence[Job], place: Path) -> list[Any]:
    """Return submitit's jobs, without waiting. Raises RunError where Slurm refuses them."""
    from submitit.core.core import Job as SubmititJob

    job_class: Any = SubmititJob
    results, was_there = job_class.results, place.exists()
    job_class.results = lambda job: [job]  # it would wait, and raise for the first one lost
    try:
        with contextlib.redirect_stdout(sys.stderr):  # submitit logs to the stdout of its import
            found: list[Any] = launcher.launch(
                [[o for o in job.overrides if not is_hydras(o)] for job in jobs], 0
            )
        return found
    except Exception as error:
        if not was_there:
            shutil.rmtree(place, ignore_errors=True)
        lines = [line for line in str(error).splitlines() if "sbatch: error" in line]
        raise RunError(f"Slurm refuses the jobs: {lines[0] if lines else first_line(error)}") from error
    finally:
        job_class.results = results


def _in_queue(jobs: list[Any]) -> bool:
    """Tell whether any of the jobs waits or runs; without an answer they do."""
    arrays = ",".join(sorted({job.job_id.partition("_")[0] for job in jobs}))
    ask = ["squeue", "--noheader", f"--jobs={arrays}", "--format=%T"]
    asked = subprocess.run(ask, capture_output=True, text=True, check=False)
    forgotten = "Invalid job id" in asked.stderr  # minutes after its end
    return not forgotten and (asked.returncode != 0 or bool(asked.stdout.strip()))


def _code(job: Any) -> int:
    """Return the exit code of a job that is over; one that was killed left none, and counts as 1."""
    end = time.monotonic() + SEEN_WITHIN
    while not job.paths.result_pickle.exists() and time.monotonic() < end:
        time.sleep(0.5)
    try:
        if not job.paths.result_pickle.exists():
            raise RunError("it was killed or cancelled")
        done = job.results()[0]
        code: int = done.return_value  # raises what the job raised
        return code
    except Exception as error:  # whatever the file of the result makes of it
        said = visible(first_line(error).removeprefix("error: "))
        say(f"job {job.job_id} of submitit left no result: {said}\n  what it printed: {job.paths.stderr}")
        return 1


def run_here(command: str, config: DictConfig) -> int:
    """Run one job in Slurm's process; jobs of one run directory wait for each other."""
    os.environ.setdefault(WAIT, "1")
    overrides, settings = list(HydraConfig.get().overrides.task), plain_settings(command, config)
    try:
        return preemptible(lambda: run_job(new_job(command, settings), overrides, in_sweep=True))
    except Exception as error:
        return report_error(error, StopFlag())


def preemptible(run: Callable[[], int]) -> int:
    """Run in a job that saves and goes back into the queue near its time limit, or when it is pre-empted.

    submitit's signal (USR2) is turned into one that the run saves on; submitit's handler does the rest. A job
    that Slurm itself requeues, or that was cancelled, leaves no result: that would end the waiting command.
    """
    requeue = signal.getsignal(signal.SIGUSR2)
    assert callable(requeue)
    signal.signal(signal.SIGUSR1, requeue)  # while there is no run to save
    signal.signal(signal.SIGUSR2, lambda *_: signal.raise_signal(signal.SIGUSR1))
    code = run()
    if code not in CODES.values():
        return code
    ask = ["scontrol", "--oneliner", "show", "job", os.environ.get("SLURM_JOB_ID", "")]
    if "JobState=RUNNING" in subprocess.run(ask, capture_output=True, text=True, check=False).stdout:
        requeue(signal.SIGUSR2, None)  # exits; raises if it was put back too often
    sys.exit(code)
