"""Tell how long the trainings of a sweep still take, also before the first one has ended.

Each training is estimated before it begins. The speed in its metrics.jsonl then says how much slower or
faster this machine is, as busy as it is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posenc.results.runs import METRICS_FILE, last_metrics
from posenc.running.estimate import estimate
from posenc.running.jobs import CheckedJob
from posenc.running.sweep.resources import START_SECONDS, seconds_of_all, threads_of
from posenc.running.sweep.task import SweepTask


@dataclass(frozen=True)
class Speed:
    """Hold how far a training was when it last wrote to metrics.jsonl, and how fast."""

    tokens: int  # since the start of the run
    tokens_per_second: float
    written_at: float  # by time.time()

    @classmethod
    def read(cls, directory: Path) -> Speed | None:
        """Return what a run wrote last; None before it has written anything."""
        metrics = last_metrics(directory)
        if not metrics.get("tokens_per_second"):
            return None
        written_at = (directory / METRICS_FILE).stat().st_mtime
        return cls(metrics["tokens"], metrics["tokens_per_second"], written_at)


@dataclass(frozen=True)
class EstimatedTask:
    """Hold what a training takes by its estimate."""

    directory: Path  # of the run
    tokens: int  # that it is trained on
    training_seconds: float
    evaluation_seconds: float

    @property
    def seconds(self) -> float:
        """Return the estimated seconds of the training and its evaluation."""
        return self.training_seconds + self.evaluation_seconds

    def slowness(self, speed: Speed) -> float:
        """Return how many seconds an estimated second takes."""
        return self.tokens / speed.tokens_per_second / self.training_seconds

    def seconds_left(self, speed: Speed, seconds_running: float) -> float:
        """Return the seconds that are left of the training and its evaluation."""
        training_left = (self.tokens - speed.tokens) / speed.tokens_per_second
        # An evaluation writes no speed, so it is taken to be as slow as the training before it.
        evaluation_left = self.evaluation_seconds * self.slowness(speed)
        # an earlier process may have written long ago
        since_written = min(time.time() - speed.written_at, seconds_running)
        return max(0.0, training_left + evaluation_left - since_written)


class SweepEstimate:
    """Hold the estimates of the trainings that a sweep runs, `at_once` of them at a time."""

    def __init__(self, tasks: Mapping[str, EstimatedTask], at_once: int) -> None:
        """Take the estimates by the names of the tasks, in the order in which they begin."""
        self._tasks = tasks
        self._at_once = at_once

    def seconds_left(self, seconds_running: Mapping[str, float], ended: Collection[str]) -> float:
        """Return the seconds until the last task ends, by the names of the tasks that run and have ended."""
        speeds = {name: Speed.read(task.directory) for name, task in self._tasks.items()}
        slownesses = []
        for name, speed in speeds.items():
            if speed is not None:
                slownesses.append(self._tasks[name].slowness(speed))
        # Before any run has written a speed, the estimates are taken as they are.
        mean_slowness = statistics.fmean(slownesses) if slownesses else 1.0
        waiting = [name for name in self._tasks if name not in seconds_running and name not in ended]
        seconds = []
        for name in [*seconds_running, *waiting]:
            task = self._tasks[name]
            speed = speeds[name]
            # A task's own speed says most. Until it has written one, the others tell how slow the machine is.
            running_for = seconds_running.get(name, 0.0)
            start_left = max(0.0, START_SECONDS * mean_slowness - running_for)
            if speed is None:
                work_left = task.seconds * mean_slowness
            else:
                work_left = task.seconds_left(speed, running_for)
            seconds.append(start_left + work_left)
        return seconds_of_all(seconds, self._at_once)


def estimate_sweep(tasks: Sequence[SweepTask], checked: Sequence[CheckedJob], at_once: int) -> SweepEstimate:
    """Estimate the trainings of a sweep: the first one takes a third of a second, the others next to none."""
    estimates = {}
    for task, checked_job in zip(tasks, checked, strict=True):
        job = checked_job.job
        training = job.training
        assert training is not None
        cost = estimate(job, threads_of(task))
        job.corpus_facts.release()  # the documents of all jobs at once may be gigabytes
        tokens = training.steps * training.batch_windows * job.settings.context_length
        estimates[task.name] = EstimatedTask(
            task.directory, tokens, cost.training_seconds, cost.evaluation_seconds
        )
    return SweepEstimate(estimates, at_once)
