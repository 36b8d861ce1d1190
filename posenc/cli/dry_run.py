"""Run `posenc train --dry-run`: print sizes, memory and time of each job. Nothing is written or fetched."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.config.compose import Jobs
from posenc.config.overrides import CommandLine
from posenc.core.console import terminal_width
from posenc.core.errors import RunError, plural, visible
from posenc.core.progress import end_starting
from posenc.core.quantities import duration
from posenc.data import corpus_notes
from posenc.data.corpus import known_figures
from posenc.data.hub import go_offline
from posenc.data.sources import is_streamed, pinned_identity
from posenc.running.estimate import Estimate, cost_key, estimate
from posenc.running.job import Job
from posenc.running.jobs import check_jobs, in_running_order
from posenc.running.room import Room, room_on
from posenc.running.run_directory import OPEN, run_state, step_to_continue_from
from posenc.running.sweep.resources import START_SECONDS, seconds_of_all, tasks_at_once_here, threads_of
from posenc.running.sweep.task import SweepTask, make_tasks
from posenc.settings.tree import DataSettings


@dataclass(frozen=True)
class EstimatedJob:
    """Hold a job, what it takes, and whether it is to run at all."""

    job: Job
    estimate: Estimate
    state: str  # open, finished or diverged
    done_steps: int = 0  # updates of a training that was stopped, and continues after them

    @property
    def training_seconds(self) -> float:
        """Return the seconds of the updates that are left."""
        return self.estimate.training_seconds_after(self.done_steps)

    @property
    def seconds(self) -> float:
        """Return the seconds of training and evaluation; 0 for a run that is finished or has diverged."""
        if self.state != OPEN:
            return 0.0
        return self.training_seconds + self.estimate.evaluation_seconds


def print_dry_run(composed: Jobs, line: CommandLine, *, retry: bool = False) -> int:
    """Validate every job and print what it takes; return 1 if one does not fit into memory, else 0.

    Raises UserError as a real run would, and RunError if a corpus or tokenizer would have to be fetched.
    """
    # From here on the hub's libraries fail where they would fetch something.
    go_offline()
    # First of all, since the checks of the jobs would read the corpus,
    # and fail in the words of the hub's library.
    for composed_job in composed.jobs:
        check_corpus_is_here(composed_job.run_settings.data)
    checked_jobs = in_running_order(check_jobs(composed))
    # The tasks say how many threads each job gets, and how many run at once.
    tasks = make_tasks("train", line, checked_jobs) if composed.is_sweep else []
    estimates: dict[str, Estimate] = {}
    jobs: list[EstimatedJob] = []
    for number, checked_job in enumerate(checked_jobs):
        job = checked_job.job
        state = run_state(job.directory, job.settings.eval, retry=retry)
        # Of a run that is finished the table says what it took, by the estimate.
        done_steps = step_to_continue_from(job.directory) if state == OPEN else 0
        key = cost_key(job.run_settings)
        is_trained = job.training is not None and done_steps == job.training.steps
        if is_trained:
            # Its evaluation was stopped, and what is stored of it is that of no other job.
            key = str(job.directory)
        # The seeds of a row cost the same, and share one estimate. A sweep gives each job on a CPU so many
        # threads; a run alone takes the free cores.
        if key not in estimates:
            threads = threads_of(tasks[number]) if tasks else None
            estimates[key] = estimate(job, threads, skips_stored=is_trained)
        job.corpus_facts.release()  # the documents of all jobs at once may be gigabytes
        jobs.append(EstimatedJob(job, estimates[key], state, done_steps))
    # A run alone takes all free cores and needs no plan of what runs at once.
    if not composed.is_sweep:
        return _print(jobs, _total_of_run(jobs[0]))
    open_tasks = [task for task, estimated in zip(tasks, jobs, strict=True) if estimated.state == OPEN]
    return _print(jobs, _total_of_sweep(jobs, open_tasks, composed))


def check_corpus_is_here(data: DataSettings) -> None:
    """Raise RunError for a corpus that would have to be fetched."""
    # Only corpora of the hub are fetched. The sizes of those that were here once are in the cache.
    if is_streamed(data) and known_figures(pinned_identity(data)) is None:
        problem = f"data={data.name} is not here yet, and a dry run fetches nothing"
        raise RunError(problem, hint=f"posenc data prepare data={data.name}")


def _total_of_run(entry: EstimatedJob) -> str:
    """Return how long a single run takes, in words."""
    seconds = entry.seconds
    if seconds:  # it takes as long to begin as this process did
        # Of a short run the beginning is nearly half: 3 of 7 s of `experiment=smoke` (docs/performance.md).
        seconds += time.time() - psutil.Process().create_time()
    return f"{duration(seconds)} for 1 job"


def _total_of_sweep(jobs: list[EstimatedJob], open_tasks: list[SweepTask], composed: Jobs) -> str:
    """Return how long a sweep takes, in words, with as many jobs at once as it runs here."""
    # Of short trainings most of the time is that of their processes to begin.
    seconds = [START_SECONDS + entry.seconds for entry in jobs if entry.state == OPEN]
    count = plural(len(jobs), "job")
    # How many run side by side on a cluster is for its queue to say.
    if composed.launcher is not None:
        return f"{duration(sum(seconds))} for {count}, one after the other (a cluster runs them side by side)"
    sweep = composed.jobs[0].settings.sweep
    assert sweep is not None  # only a stored run has none
    at_once = tasks_at_once_here(open_tasks, sweep) if open_tasks else 1
    total = f"{duration(seconds_of_all(seconds, at_once))} for {count}"
    if len(jobs) == 1:
        return total
    how = "one after the other" if at_once == 1 else f"{at_once} at once"
    return f"{total}, {how},"


def _print(jobs: list[EstimatedJob], total: str) -> int:
    """Print the time of all jobs, a row for each, and the details of a single one; return the exit code."""
    device = jobs[0].job.device
    room = room_on(device)
    notes = _notes(jobs)
    if len(jobs) == 1:
        notes = [*_details(jobs[0]), *notes]
    # The line of the command that begins would stand among the results.
    end_starting()
    console = Console(width=terminal_width(), highlight=False)
    console.print(Text(f"About {total} on {device}; nothing was written.\n"))
    console.print(_table(jobs, room))
    for note in dict.fromkeys(notes):  # each once
        console.print(Text(visible(note)))
    # A run that is finished needs no memory any more.
    too_large = [job for job in jobs if job.state == OPEN and not room.fits(job.estimate.memory)]
    return 1 if too_large else 0


def _table(jobs: list[EstimatedJob], room: Room) -> Table:
    """Return a table with a row for each job."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", overflow="fold")
    for head in ("parameters", "training", "evaluation", "memory"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("state")
    for estimated in jobs:
        cost = estimated.estimate
        table.add_row(
            # A Text, since rich would take brackets in a user's name for markup.
            Text(visible(estimated.job.directory.name)),
            f"{cost.parameters:,}",
            duration(estimated.training_seconds),
            duration(cost.evaluation_seconds),
            megabytes(room.needed(cost.memory)),
            _state_text(estimated, room),
        )
    return table


def _state_text(estimated: EstimatedJob, room: Room) -> str:
    """Return whether a job is to run, and fits into the free memory."""
    if estimated.state != OPEN:
        return estimated.state
    if not room.fits(estimated.estimate.memory):
        return f"does not fit: {megabytes(room.free)} free"
    training = estimated.job.training
    assert training is not None
    if estimated.done_steps == 0:
        return "to run"
    return f"to run, {estimated.done_steps / training.steps:.0%} trained"


def _notes(jobs: list[EstimatedJob]) -> list[str]:
    """Return what users should know about the corpora."""
    notes: list[str] = []
    for estimated in jobs:
        job = estimated.job
        longest = job.evaluation.lengths.longest
        notes += corpus_notes(job.corpus_facts, job.evaluation.split, longest, job.settings.context_length)
    return notes


def _details(estimated: EstimatedJob) -> list[str]:
    """Return lines on what a single job does."""
    job = estimated.job
    training = job.training
    assert training is not None
    length = job.settings.context_length
    batch_tokens = training.batch_windows * length
    speed = training.steps * batch_tokens / estimated.estimate.training_seconds
    windows = ", ".join(map(str, job.evaluation.lengths.windows))
    return [
        "",
        f"run        {job.directory}",
        f"training   {training.steps:,} steps, a batch is ({training.batch_windows}, {length}): "
        f"{batch_tokens:,} tokens; {speed:,.0f} tokens/s in {training.precision}",
        f"evaluation {', '.join(job.evaluation.protocol_names)} at {windows} tokens",
        *(f"left out   {problem}" for problem in estimated.estimate.problems),
    ]


def megabytes(size: float) -> str:
    # Models of a few MB and of many GB stand in one column, so the unit changes late, at 10 GB.
    return f"{size / 1e6:,.0f} MB" if size < 1e10 else f"{size / 1e9:,.1f} GB"
