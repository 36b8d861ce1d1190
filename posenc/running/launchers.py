"""A sweep by a launcher of Hydra's plug-ins: Slurm and processes by submitit, Ray.

The launcher starts the jobs that are open, waits and hands back their exit codes; how a training ended is
told by its run directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import RunMode
from omegaconf import DictConfig

from posenc.config.compose import ComposedJob, Jobs, initialized, of_the_job, of_the_sweep, plain_settings
from posenc.config.hydra_adapter import hydra_context
from posenc.config.overrides import CommandLine, quoted
from posenc.config.schema import register_schemas
from posenc.core.console import say
from posenc.core.errors import RunError, UserError, first_line, visible
from posenc.core.paths import expanded
from posenc.report.failures import DIVERGED, FINISHED
from posenc.running.one_job import run_job
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.running.sweep import show_sweep
from posenc.running.sweep_state import AskedTargets
from posenc.running.told import debugging

register_schemas()  # a launcher's process comes here first
SUBMITIT = "SUBMITIT_EXECUTOR"  # environment: set where submitit runs a job
GO_ON = "what was launched goes on (posenc runs --watch); when it has ended, the same command continues"
END = "the jobs end with this command; the same command continues from their checkpoints"
NONE_RUN = "no job was running; the same command continues"
SEEN_WITHIN = 15.0  # seconds in which what another machine wrote is visible here; submitit waits as long


def run_launched(
    command: str,
    line: CommandLine,
    composed: Jobs,
    places: Sequence[Path],
    stands: Callable[[int], str | None],
    asked: AskedTargets,
) -> int:
    """Launch the jobs that are open, wait, show what there is, list what failed; arguments as of run_sweep.

    Returns 0, 1 if anything is not finished, 130 or 143 after a signal, which ends the waiting.
    """
    codes: list[int] = []
    waiting: list[int] = []
    count = len(composed.jobs)
    names = [f"[{i + 1}/{count}] {visible(' '.join(of_the_job(composed.jobs[i])))}" for i in range(count)]
    for i, name in enumerate(names):
        state = stands(i)
        if state == FINISHED:
            say(f"{name}: already finished")
        elif state == DIVERGED:
            say(f"{name}: diverged before, which is final without --retry")
            codes.append(1)
        else:
            waiting.append(i)
    with StopFlag() as stop:
        try:
            while waiting:
                first: dict[Path, int] = {}  # of each directory
                for i in waiting:
                    first.setdefault(places[i], i)
                now = list(first.values())
                waiting = [i for i in waiting if i not in now]
                ended = _launch(command, line, [composed.jobs[i] for i in now])
                codes += [_by_the_run(names[i], code, stands, i) for i, code in zip(now, ended, strict=True)]
        except InterruptedRunError as interrupted:
            say(f"{stop.name}: {str(interrupted) or NONE_RUN}")
            return stop.exit_code
        except UserError:
            raise
        except Exception as error:  # the launcher's own: sbatch refused the job, no Ray to connect to
            if debugging():
                raise
            hint = "said by the launcher; --debug shows where"
            say(RunError(f"{type(error).__name__}: {error}", hint=hint).text())
            codes.append(1)
    show_sweep(list(dict.fromkeys(places)), codes, asked)
    return 1 if any(codes) else 0


def _by_the_run(name: str, code: int, stands: Callable[[int], str | None], i: int) -> int:
    """The exit code of job i by how its run stands; an evaluation's own, as nothing else tells of it.

    A job's result may be lost, or be visible on a network disk before or after what is in the run directory.
    """
    end = time.monotonic() + SEEN_WITHIN
    while (state := stands(i)) not in (None, FINISHED, DIVERGED) and code == 0 and time.monotonic() < end:
        time.sleep(0.5)
    if state is None:
        return code
    if state == FINISHED:
        if code != 0:
            say(f"{name}: its run is finished")
        return 0
    if code == 0:
        say(f"{name}: its job ended with 0, but its run is not finished")
    return code or 1


def _launch(command: str, line: CommandLine, jobs: Sequence[ComposedJob]) -> list[int]:
    """What Hydra's basic sweeper does with jobs that are composed: their exit codes, once all have ended."""
    with initialized(line.config_dir) as search:
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        runs = jobs[0].settings.get("runs_dir")  # of trainings; the launcher's files go there
        folder = [f"runs_dir={quoted(str(expanded(runs)))}"] if runs is not None else []
        overrides = [*search, *of_the_sweep(line), *folder]
        config = hydra.compose_config(command, overrides, RunMode.MULTIRUN, with_log_configuration=True)
        chosen, kind = config.hydra.runtime.choices["hydra/launcher"], config.hydra.launcher._target_
        slurm = kind.endswith(".SlurmLauncher")
        if slurm and shutil.which("sbatch") is None:
            hint = (
                "give the command where Slurm's commands are; hydra/launcher=joblib runs several at once here"
            )
            raise UserError("hydra/launcher", chosen, "there is no sbatch on this machine", hint=hint)
        context = hydra_context(config)
        launcher = Plugins.instance().instantiate_launcher(context, JOBS[command], config)
        if kind.endswith((".SlurmLauncher", ".LocalLauncher")):
            from posenc.running.submitit_jobs import waited_for

            waits: contextlib.AbstractContextManager[None] = waited_for()
        else:
            waits = contextlib.nullcontext()
        try:
            with waits:
                returns = launcher.launch([of_the_job(job) for job in jobs], 0)
        except InterruptedRunError:
            raise InterruptedRunError(GO_ON if slurm else END) from None
    return [_code(done) for done in returns]


def _code(done: JobReturn) -> int:
    if done.status == JobStatus.COMPLETED and isinstance(done._return_value, int):
        return done._return_value
    error = done._return_value
    told = (
        f"{type(error).__name__}: {first_line(error)}"
        if isinstance(error, BaseException)
        else done.status.name
    )
    say(f"{' '.join(done.overrides or [])}: {told}")
    return 1


def train_job(config: DictConfig) -> int:
    """One training job in a process of the launcher's."""
    return _job("train", config)


def eval_job(config: DictConfig) -> int:
    """One evaluation job in a process of the launcher's."""
    return _job("eval", config)


JOBS: dict[str, Callable[[Any], Any]] = {"train": train_job, "eval": eval_job}


def _job(command: str, config: DictConfig) -> int:
    settings = plain_settings(command, config)
    if os.environ.get(SUBMITIT) != "slurm":
        return run_job(command, settings, in_sweep=True)
    from posenc.running.submitit_jobs import preemptible

    return preemptible(lambda: run_job(command, settings, in_sweep=True))
