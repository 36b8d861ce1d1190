"""Describe one job of a sweep as a process: its command, what it needs, and how it ended."""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from posenc.config.compose import ComposedJob
from posenc.config.keys import key_of
from posenc.config.overrides import CommandLine
from posenc.core.errors import visible
from posenc.core.first_signals import CODES
from posenc.core.machine import threads_for, usable_cores
from posenc.core.run_states import DIVERGED, FAILED, FINISHED, INTERRUPTED
from posenc.running.job import Job
from posenc.running.jobs import CheckedJob
from posenc.running.run_directory import read_status, run_state
from posenc.running.sweep.process import ERROR
from posenc.running.unloaded_model import UnloadedModel
from posenc.settings.tree import EvalSettings

WAITING = "waiting"
NOT_STARTED = "not started"
# of a task that a signal ended
SAVED = "saved as far as it was"
NOTHING_SAVED = "before anything was saved"

# The kernel kills with SIGKILL when memory runs out, but so does a person with kill -9.
OUT_OF_MEMORY = (
    "out of memory, unless somebody killed it: try fewer jobs at once, or a smaller batch or model"
)
VISIBLE_AFTER = 15.0  # seconds until a file that another machine wrote is surely visible here
FILE_SECONDS = 0.5  # between two looks for such a file
QUOTED_WORD = re.compile(r"='([\w.+-]+)'$")  # data.task='copy': a name that may be a path

PROCESS_BYTES = 6e8  # memory of a process that has loaded torch
BYTES_A_TRAINED_WEIGHT = 40  # value, gradient, two moments, and the activations of a batch of a common size


@dataclass(frozen=True)
class SweepTask:
    """Describe one job of a sweep, which a command of its own runs."""

    name: str  # [3/12] rope seed=0; no two tasks of a sweep have the same
    command: Sequence[str]
    directory: Path  # of the run
    overrides: Sequence[str] = ()
    lock: str = "run"  # see Job.lock
    device: str = "cpu"
    evaluation: EvalSettings | None = None  # what a training is evaluated by; None for `posenc eval`
    precision: str | None = None  # of a training, resolved; None for `posenc eval`
    retry: bool = False  # train a run that diverged again
    threads: int = 1
    memory: float = 0.0  # estimated bytes
    weights: int = 0  # of the model's blocks; of a model of transformers all

    @property
    def is_finished(self) -> bool:
        """Tell whether the run of a training is finished; always True for `posenc eval`."""
        if self.evaluation is None:  # only the exit code tells how an evaluation ended
            return True
        return run_state(self.directory, self.evaluation, retry=self.retry) == FINISHED

    def with_precision(self, words: Sequence[str]) -> list[str]:
        """Return the words of its command with the precision that `auto` is here.

        On another machine it could be another one, which would be another run.
        """
        if self.precision is None:
            return list(words)
        # The word is replaced and not repeated: posenc says of a repeated one that it has no effect.
        other_words = [word for word in words if key_of(word) != "train.precision"]
        return [*other_words, f"train.precision={self.precision}"]


@dataclass(frozen=True)
class TaskOutcome:
    """Tell how a task ended, or that it has not."""

    state: str
    reason: str | None = None

    @property
    def text(self) -> str:
        """Return the state and the reason, for a line of output."""
        if not self.reason:
            return visible(self.state)
        return visible(f"{self.state}, {self.reason}")


@dataclass(frozen=True)
class SweepResult:
    """Tell how the tasks ended."""

    outcomes: Mapping[str, TaskOutcome] = field(default_factory=dict)  # by name of the task
    exit_code: int = 0  # of the signal that ended the sweep early


def outcome_on_disk(task: SweepTask) -> TaskOutcome | None:
    """Return how the run of a task ended earlier; None if something is left to do."""
    if task.evaluation is None:
        return None
    state = run_state(task.directory, task.evaluation, retry=task.retry)
    if state == FINISHED:
        return TaskOutcome(FINISHED)
    if state == DIVERGED:
        return TaskOutcome(DIVERGED, read_status(task.directory).get("reason"))
    return None


def outcome_of_process(task: SweepTask, exit_code: int, last_lines: Collection[str]) -> TaskOutcome:
    """Return how a task ended, by the exit code of its process, its run directory and its last lines."""
    # A plug-in may leave by sys.exit(0) in the middle of a run, so code 0 alone is not enough.
    if exit_code == 0 and task.is_finished:
        return TaskOutcome(FINISHED)
    # a negative code: the signal came before posenc handled signals
    if exit_code in CODES.values() or -exit_code in CODES:
        return TaskOutcome(INTERRUPTED, SAVED if read_status(task.directory) else NOTHING_SAVED)
    status = read_status(task.directory)
    # With any other code the status may be that of an earlier process.
    if exit_code == 1 and task.evaluation is not None and status.get("status") == DIVERGED:
        return TaskOutcome(DIVERGED, status.get("reason"))
    if exit_code < 0:
        reason = OUT_OF_MEMORY if exit_code == -signal.SIGKILL else None
        return TaskOutcome(f"killed by {signal.Signals(-exit_code).name}", reason)
    errors = [line.removeprefix(ERROR) for line in last_lines if line.startswith(ERROR)]
    if errors:
        return TaskOutcome(FAILED, errors[-1])
    return TaskOutcome(FAILED, f"exit code {exit_code} before it was finished")


def wait_until(condition: Callable[[], bool]) -> bool:
    """Wait at most VISIBLE_AFTER seconds for a condition on files; return whether it holds."""
    end = time.monotonic() + VISIBLE_AFTER
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(FILE_SECONDS)
    return True


def make_tasks(
    command: str, line: CommandLine, checked: Sequence[CheckedJob], *, retry: bool = False
) -> list[SweepTask]:
    """Return the tasks of a sweep's validated jobs, each with the command that runs it."""
    # -P: a module in the working folder must not take the place of an installed one
    program = [sys.executable, "-P", "-m", "posenc", command]
    if line.config_dir is not None:
        program += ["--config-dir", line.config_dir]
    if retry:
        program.append("--retry")
    names = _task_names([checked_job.composed for checked_job in checked])
    cores = usable_cores()
    tasks = []
    for name, checked_job in zip(names, checked, strict=True):
        composed = checked_job.composed
        job = checked_job.job
        needs = _needs_of(job, cores)
        tasks.append(
            SweepTask(
                name=name,
                # RUN: the experiment may make a sweep, and a job of a sweep must not be another sweep
                command=[*program, *composed.overrides, "hydra.mode=RUN"],
                directory=job.directory,
                lock=job.lock,
                overrides=composed.overrides,
                device=str(job.device),
                evaluation=job.settings.eval if command == "train" else None,
                precision=None if job.training is None else job.training.precision,
                retry=retry,
                threads=needs.threads,
                memory=needs.memory,
                weights=needs.weights,
            )
        )
    return tasks


@dataclass(frozen=True)
class _Needs:
    """What the process of a job needs, about."""

    weights: int  # of the model
    threads: int
    memory: float  # bytes


def _needs_of(job: Job, cores: int) -> _Needs:
    """Return what a job needs: of a model of transformers its weights, and on a CPU its passes and all cores.

    On a CPU such a model is planned and timed with all cores.
    """
    model = job.given_model
    if isinstance(model, UnloadedModel):
        sizes = model.sizes
        if job.device.type == "cuda":  # weights pass through the machine's memory on their way to the GPU
            threads = threads_for(sizes.parameters, cores)
            return _Needs(sizes.parameters, threads, PROCESS_BYTES + sizes.weight_bytes)
        longest = job.evaluation.lengths.longest
        of_passes = model.memory(job.evaluation.settings.batch_tokens, longest, longest)
        return _Needs(sizes.parameters, cores, PROCESS_BYTES + of_passes + sizes.bytes_of_copy)
    weights = job.block_weights
    assert weights is not None  # only a given model has none, and it is an unloaded one in a sweep
    return _Needs(weights, threads_for(weights, cores), PROCESS_BYTES + BYTES_A_TRAINED_WEIGHT * weights)


def _task_names(jobs: Sequence[ComposedJob]) -> list[str]:
    """Return `[3/12] rope seed=0` for each job: its number, and the overrides that not all jobs share."""
    shared = set(jobs[0].overrides)
    for job in jobs:
        shared &= set(job.overrides)
    names = []
    for number, job in enumerate(jobs, 1):
        overrides = [override for override in job.overrides if override not in shared]
        if not overrides:  # a sweep of one job
            overrides = job.overrides[:1]
        unquoted = [QUOTED_WORD.sub(r"=\1", override) for override in overrides]
        label = " ".join(override.removeprefix("encoding=") for override in unquoted)
        names.append(f"[{number}/{len(jobs)}] {visible(label)}")
    return names
