"""Run a sweep through a launcher of Hydra's plug-ins: Slurm and local processes by submitit, Ray.

The launcher starts the jobs that are open, waits, and returns their exit codes; how a training ended is read
from its run directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from posenc.config.compose import ComposedJob, Jobs, initialized, of_the_sweep, plain_settings
from posenc.config.hydra_adapter import launcher_of
from posenc.config.overrides import CommandLine, is_hydras, quoted
from posenc.config.schema import register_schemas
from posenc.core.console import say
from posenc.core.errors import RunError, UserError, visible
from posenc.core.paths import expanded
from posenc.running.jobs import run_job
from posenc.running.run_directory import DIVERGED, FINISHED, OPEN, read_status
from posenc.running.signals import CODES, InterruptedRunError, StopFlag, debugging
from posenc.running.sweep import pool_of, show_sweep
from posenc.running.worker_pool import FAILED, WAITING, Job, WorkerPool

register_schemas()  # a launcher's process comes here first
SUBMITIT = "SUBMITIT_EXECUTOR"  # environment: set where submitit runs a job
GO_ON = "what was launched goes on (posenc runs --watch); when it has ended, the same command continues"
END = "the jobs end with this command; the same command continues from their checkpoints"
NONE_RUN = "no job was running; the same command continues"
SEEN_WITHIN = 15.0  # seconds in which what another machine wrote is visible here; submitit waits as long
QUEUE_SECONDS = 60  # between two looks at Slurm's queue
AGAIN = 10.0  # seconds to the next SIGTERM: a process that is starting ignores it
OVER = {
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT"),
    "GONE",  # Slurm has forgotten it
}


def run_launched(command: str, line: CommandLine, composed: Jobs) -> int:
    """Launch the jobs that are open, wait, show what there is, list what failed; return the exit code.

    0, 1 if anything is not finished, 130 or 143 after a signal, which ends the waiting.
    """
    pool = pool_of(command, line, composed)
    waiting = [i for i, job in enumerate(pool.jobs) if job.state == WAITING]
    with StopFlag() as stop:
        try:
            while waiting:
                first: dict[Path, int] = {}  # two jobs of one directory go one after the other
                for i in waiting:
                    first.setdefault(pool.jobs[i].place, i)
                now = list(first.values())
                waiting = [i for i in waiting if i not in now]
                codes = _launch(command, line, [composed.jobs[i] for i in now])
                for i, code in zip(now, codes, strict=True):
                    _note_end(pool, pool.jobs[i], code)
        except InterruptedRunError as interrupted:
            say(f"{stop.name}: {str(interrupted) or NONE_RUN}")
            return stop.exit_code
        except Exception as error:  # the launcher's own: sbatch refused the job, no Ray to connect to
            if isinstance(error, UserError) or debugging():
                raise
            hint = "said by the launcher; --debug shows where"
            say(RunError(f"{type(error).__name__}: {error}", hint=hint).text())
    return show_sweep(command, composed, pool.jobs)


def _note_end(pool: WorkerPool, job: Job, code: int) -> None:
    """Note how a job ended: by how its run stands; of an evaluation, by its exit code.

    A job's result may be lost, or be visible on a network disk before what is in the run directory.
    """
    end = time.monotonic() + SEEN_WITHIN
    while (state := pool.state_of(job)) == OPEN and code == 0 and time.monotonic() < end:
        time.sleep(0.5)
    if state == FINISHED or (state is None and code == 0):
        job.state = FINISHED
    elif state == DIVERGED:
        job.state, job.reason = DIVERGED, read_status(job.place).get("reason")
    else:
        job.state = FAILED
        job.reason = f"exit code {code}" if code else "its job ended with 0, but its run is not finished"


def _launch(command: str, line: CommandLine, jobs: Sequence[ComposedJob]) -> list[int]:
    """Launch composed jobs as Hydra's basic sweeper does; return their exit codes once all have ended."""
    with initialized(line.config_dir) as search:
        runs = jobs[0].settings.get("runs_dir")  # of trainings; the launcher's files go there
        folder = [f"runs_dir={quoted(str(expanded(runs)))}"] if runs is not None else []
        overrides = [*search, *of_the_sweep(line), *folder]
        launcher, config = launcher_of(command, overrides, partial(run_here, command))
        chosen, kind = config.hydra.runtime.choices["hydra/launcher"], config.hydra.launcher._target_
        slurm = kind.endswith(".SlurmLauncher")
        if slurm and shutil.which("sbatch") is None:
            hint = "give the command where Slurm's commands are; "
            hint += "hydra/launcher=joblib runs several at once here"
            raise UserError("hydra/launcher", chosen, "there is no sbatch on this machine", hint=hint)
        by_submitit = kind.endswith((".SlurmLauncher", ".LocalLauncher"))
        try:
            each = waiting_for_each() if by_submitit else contextlib.nullcontext()
            with contextlib.redirect_stdout(sys.stderr), each:  # submitit logs to the stdout of its import
                returns = launcher.launch([of_the_job(job) for job in jobs], 0)
        except InterruptedRunError:
            if not slurm:
                _stop_children()
            raise InterruptedRunError(GO_ON if slurm else END) from None
    return [_code(done) for done in returns]


def of_the_job(job: ComposedJob) -> list[str]:
    """Return the job's overrides without those for Hydra."""
    return [o for o in job.overrides if not is_hydras(o)]


def _code(done: JobReturn) -> int:
    if done.status == JobStatus.COMPLETED and isinstance(done._return_value, int):
        return done._return_value
    error = done._return_value
    reason = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else done.status.name
    say(f"{' '.join(done.overrides or [])}: {visible(reason)}")
    return 1


def run_here(command: str, config: DictConfig) -> int:
    """Run one job in a process of the launcher's."""
    job = ComposedJob(list(HydraConfig.get().overrides.task), plain_settings(command, config))
    if os.environ.get(SUBMITIT) != "slurm":
        return run_job(command, job, in_sweep=True)
    return preemptible(lambda: run_job(command, job, in_sweep=True))


@contextmanager
def waiting_for_each() -> Iterator[None]:
    """Wait for every job of a launch; one without a readable result is named and counts as 1.

    submitit raises for the first such job and leaves the others alone; and it asks Slurm's accounting, which
    a cluster may lack: then it waits for ever for a job that was killed.
    """
    from submitit.core.core import Job
    from submitit.slurm.slurm import SlurmJob

    job_class: Any = Job
    wait, watcher = job_class.results, SlurmJob.watcher

    def results(job: Any) -> list[Any]:
        try:
            return list(wait(job))
        except Exception as error:  # whatever the file of the result makes of it
            last = visible((str(error).strip().splitlines() or [""])[-1])
            lost = f"job {job.job_id} of submitit left no result, state {job.state}: {last}"
            say(f"{lost}\n  what it printed: {job.paths.stderr}")
            return [JobReturn(status=JobStatus.COMPLETED, _return_value=1)]

    job_class.results, SlurmJob.watcher = results, queue_watcher()
    try:
        yield
    finally:
        job_class.results, SlurmJob.watcher = wait, watcher


def queue_watcher() -> Any:
    """Return a watcher that asks Slurm's queue, not its accounting, how jobs are."""
    from submitit.slurm.slurm import SlurmInfoWatcher

    class Queue(SlurmInfoWatcher):
        def _make_command(self) -> list[str] | None:
            flags = ["--noheader", "--array", "--states=all", f"--user={os.getuid()}", "--format=%i|%T"]
            return ["squeue", *flags] if self._registered - self._finished else None

        def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
            """Return states by job; Slurm forgets a job minutes after its end: GONE."""
            text = string if isinstance(string, str) else string.decode()
            found = dict(line.strip().split("|", 1) for line in text.splitlines() if "|" in line)
            return {job: {"State": found.get(job, "GONE")} for job in self._registered - self._finished}

        def is_done(self, job_id: str, mode: str = "standard") -> bool:
            return self.get_state(job_id, mode=mode) in OVER

    return Queue(delay_s=QUEUE_SECONDS)


def _stop_children() -> None:
    """Send SIGTERM to the launcher's processes of this machine until they have saved and ended."""
    while left := psutil.Process().children():
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        psutil.wait_procs(left, timeout=AGAIN)


def preemptible(run: Callable[[], int]) -> int:
    """Run in a Slurm job that saves and goes back into the queue near its time limit, or when pre-empted.

    submitit's signal (USR2) is turned into one that the run saves on; submitit's handler does the rest. A job
    that Slurm itself requeues or that was cancelled leaves no result: for who waits, that would be the end.
    """
    from submitit.core.job_environment import JobEnvironment

    asked = JobEnvironment._usr_sig()
    requeue = signal.getsignal(asked)
    assert callable(requeue)
    if asked not in CODES:
        signal.signal(signal.SIGUSR1, requeue)  # while there is no run to save
        signal.signal(asked, lambda *_: signal.raise_signal(signal.SIGUSR1))
    code = run()
    if code not in CODES.values():
        return code
    if _slurm_state() == "RUNNING":
        requeue(asked, None)  # exits; raises if it was put back too often
    sys.exit(code)


def _slurm_state() -> str:
    """Return the state of this job as Slurm sees it."""
    ask = ["scontrol", "--oneliner", "show", "job", os.environ.get("SLURM_JOB_ID", "")]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return "UNKNOWN"
    found = re.search(r"\bJobState=(\w+)", answer)
    return found[1] if found else "UNKNOWN"
