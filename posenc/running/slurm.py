"""Run a sweep through Slurm by hydra-submitit-launcher: submit the open jobs as one array, and wait.

submitit submits and requeues the jobs, and writes their results. Slurm's queue tells whether jobs are over:
submitit would ask Slurm's accounting, and on a cluster without accounting wait for ever.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from posenc.config.compose import deciding_overrides, initialize_hydra, without_files
from posenc.config.hydra_adapter import launcher_and_config
from posenc.config.keys import is_hydras
from posenc.config.overrides import CommandLine, quote
from posenc.config.typed import typed_settings
from posenc.core.console import say
from posenc.core.errors import RunError, UserError, first_line, visible
from posenc.core.first_signals import CODES
from posenc.core.paths import exists
from posenc.running.invocation import WAIT, Invocation
from posenc.running.jobs import plan_job, run_job
from posenc.running.report_error import report_error
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.running.sweep.lines import end_line
from posenc.running.sweep.task import (
    SweepResult,
    SweepTask,
    TaskOutcome,
    outcome_of_process,
    wait_until,
)
from posenc.settings.launchers import LAUNCHER

JOBS_GO_ON = (
    "the submitted jobs go on (posenc runs shows them); when they have ended, the same command continues"
)
# Slurm's controller serves all users of a cluster, and a job takes minutes.
QUEUE_SECONDS = 10.0  # between two looks at Slurm's queue


def launch(
    command: str, line: CommandLine, launcher_name: str, invocation: Invocation, tasks: Sequence[SweepTask]
) -> SweepResult:
    """Submit the tasks, wait until none is in the queue, and return how they ended.

    A signal ends only the waiting. Raises UserError if there is no Slurm, RunError if it refuses the jobs.
    """
    # A run lies in RUNS_DIR/EXPERIMENT/NAME. Runs that are measured may lie in several folders.
    runs_dir = tasks[0].directory.parents[1] if command == "train" else Path("runs")
    # The jobs belong to Slurm once they are submitted, so the flag is
    # never guarded: nothing is to be saved here.
    with initialize_hydra(line.config_dir) as search_overrides, StopFlag() as stop:
        overrides = [*search_overrides, *deciding_overrides(line)]
        if command == "train":  # the launcher writes its files there
            overrides.append(f"runs_dir={quote(str(runs_dir))}")
        launcher, config = launcher_and_config(command, overrides, partial(run_here, command, invocation))
        # Hydra's other launchers would run the jobs too, by rules of their own on signals, results and ends.
        if not config.hydra.launcher._target_.endswith(".SlurmLauncher"):
            problem = "is not a launcher of posenc's sweeps"
            raise UserError(LAUNCHER, launcher_name, problem, allowed=["basic", "slurm", "ray"])
        _check_slurm(launcher_name)
        outcomes: dict[str, TaskOutcome] = {}
        try:
            submitted_at = time.monotonic()
            jobs = [_words_of_job(command, search_overrides, task) for task in tasks]
            handles = _submit(launcher, jobs, runs_dir / ".sweeps")
            while _in_queue(handles):
                time.sleep(QUEUE_SECONDS)
            for task, handle in zip(tasks, handles, strict=True):
                # The jobs' output is in Slurm's files, so a failed one is named without its last lines.
                outcome = _outcome(task, handle)
                outcomes[task.name] = outcome
                say(end_line(task, outcome, time.monotonic() - submitted_at))
        except InterruptedRunError:
            say(f"{stop.name}: {JOBS_GO_ON}")
        return SweepResult(outcomes, stop.exit_code)


def _check_slurm(launcher_name: str) -> None:
    """Raise UserError if there is no Slurm, or if its controller does not answer."""
    if shutil.which("sbatch") is None:
        problem = "there is no sbatch on this machine"
    else:
        # sbatch may be installed where no controller answers, and submitit's own error comes after its files.
        answer = subprocess.run(["sinfo", "--noheader"], capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            return
        problem = f"Slurm does not answer: {visible(answer.stderr.strip())}"
    hint = f"run the command where Slurm's commands work; without {LAUNCHER} the sweep runs here"
    raise UserError(LAUNCHER, launcher_name, problem, hint=hint)


def _words_of_job(command: str, search_overrides: list[str], task: SweepTask) -> list[str]:
    """Return the overrides of a task as the job takes them, which Hydra composes and not posenc."""
    overrides = [override for override in task.overrides if not is_hydras(override)]
    return task.with_precision(without_files(command, search_overrides, overrides))


def _submit(launcher: Any, jobs: Sequence[Sequence[str]], folder: Path) -> list[Any]:
    """Submit jobs, each by its overrides, and return submitit's handles, without waiting.

    Raises RunError if Slurm refuses.
    """
    folder_existed = exists(folder)
    try:
        # submitit logs to the stdout that it finds when it is imported
        with contextlib.redirect_stdout(sys.stderr), _without_waiting():
            handles: list[Any] = launcher.launch(jobs, 0)
        return handles
    except Exception as error:
        if not folder_existed:
            # Other sweeps keep their files in the same folder, so it goes only if this one made it.
            shutil.rmtree(folder, ignore_errors=True)
        reasons = [line for line in str(error).splitlines() if "sbatch: error" in line]
        reason = reasons[0] if reasons else first_line(error)
        raise RunError(f"Slurm refuses the jobs: {reason}") from error


@contextlib.contextmanager
def _without_waiting() -> Iterator[None]:
    """Make Hydra's launcher return submitit's handles, instead of waiting for the jobs."""
    from submitit.core.core import Job as SubmititJob

    job_class: Any = SubmititJob
    results = job_class.results
    # The launcher returns `job.results()[0]` of each job, which would wait for the job's end.
    job_class.results = lambda handle: [handle]
    try:
        yield
    finally:
        job_class.results = results


def _in_queue(handles: Sequence[Any]) -> bool:
    """Tell whether any of the jobs waits or runs. If Slurm does not answer, they are taken to do so."""
    # All jobs of an array share the number before the underscore, and one question answers for all.
    arrays = ",".join(sorted({handle.job_id.partition("_")[0] for handle in handles}))
    command = ["squeue", "--noheader", f"--jobs={arrays}", "--format=%T"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Invalid job id" in answer.stderr:  # Slurm forgets a job minutes after its end
        return False
    return answer.returncode != 0 or bool(answer.stdout.strip())


def _outcome(task: SweepTask, handle: Any) -> TaskOutcome:
    """Return how a task ended that is no longer in the queue. Its files may take seconds to be visible."""
    exit_code = _exit_code(handle)
    if exit_code == 0:
        wait_until(lambda: task.is_finished)
    return outcome_of_process(task, exit_code, last_lines=())


def _exit_code(handle: Any) -> int:
    """Return the exit code of a job that is over; 1 for a job that was killed, which has none."""
    try:
        # A job that was killed writes no result. `handle.results()` would ask Slurm's accounting for its end,
        # and where there is no accounting it would wait for ever.
        if not wait_until(handle.paths.result_pickle.exists):
            raise RunError("it was killed or cancelled")
        exit_code: int = handle.results()[0].return_value  # raises what the job raised
        return exit_code
    except Exception as error:  # a damaged file may raise anything
        reason = visible(first_line(error).removeprefix("error: "))
        say(f"job {handle.job_id} of submitit left no result: {reason}")
        say(f"  what it printed: {handle.paths.stderr}")
        return 1


def run_here(command: str, invocation: Invocation, config: DictConfig) -> int:
    """Run one job in Slurm's process. Jobs of one run directory wait for each other, unless POSENC_WAIT=0."""
    # Hydra composed this job, since submitit starts Hydra's launcher and not a command of posenc.
    overrides = list(HydraConfig.get().overrides.task)
    settings = typed_settings(command, config, overrides)
    # Nobody is there to type the command again, so by default a job waits for its run.
    job_invocation = replace(invocation, waits=os.environ.get(WAIT, "1") == "1")
    try:
        return preemptible(lambda: run_job(plan_job(settings), overrides, job_invocation))
    except Exception as error:
        # The exit code is the job's result. An exception would be pickled, and read by another process.
        return report_error(error, StopFlag())


def preemptible(run: Callable[[], int]) -> int:
    """Run in a job that saves and goes back into the queue near its time limit, or when it is pre-empted.

    submitit's signal (USR2) is turned into one that the run saves on; submitit's handler does the rest. A job
    that Slurm itself requeues, or that was cancelled, must leave no result: a result ends the waiting.
    """
    requeue = signal.getsignal(signal.SIGUSR2)
    assert callable(requeue)
    # A signal between submitit's start and the first step puts the job back, too.
    signal.signal(signal.SIGUSR1, requeue)  # while there is no run to save
    signal.signal(signal.SIGUSR2, lambda *_: signal.raise_signal(signal.SIGUSR1))
    exit_code = run()
    if exit_code not in CODES.values():
        return exit_code
    command = ["scontrol", "--oneliner", "show", "job", os.environ.get("SLURM_JOB_ID", "")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    # After `scontrol requeue` or `scancel` the job has another state, and Slurm itself decides.
    if "JobState=RUNNING" in answer.stdout:
        requeue(signal.SIGUSR2, None)  # exits; raises if it was put back too often
    sys.exit(exit_code)
