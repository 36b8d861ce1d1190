"""Word what a sweep says on stderr: how each task goes, and at the end what is not finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from posenc.core.console import clock
from posenc.core.errors import visible
from posenc.report.texts import length_text
from posenc.results.runs import load_run
from posenc.results.summary import headline_losses
from posenc.running.run_directory import DIVERGED, FINISHED, LOG
from posenc.running.sweep.task import WAITING, SweepTask, TaskOutcome


def begin_line(task: SweepTask, share: Mapping[str, str]) -> str:
    """Return `[3/12] rope seed=0: begins, OMP_NUM_THREADS=1`."""
    return ", ".join([f"{task.name}: begins", *(f"{name}={value}" for name, value in share.items())])


def settled_line(task: SweepTask, outcome: TaskOutcome, finished: str) -> str:
    """Return the line of a task whose run has ended before; `finished` says by whom, if it is finished."""
    if outcome.state == DIVERGED:
        return f"{task.name}: diverged before, which is final without --retry"
    return f"{task.name}: {finished}"


def end_line(task: SweepTask, outcome: TaskOutcome, seconds: float) -> str:
    """Return the line of a task that has ended: its losses and the time it took, or what went wrong."""
    if outcome.state != FINISHED:
        return f"{task.name}: {outcome.text}"
    parts = ["finished"]
    losses = "" if task.evaluation is None else losses_text(task.directory)
    if losses:
        parts.append(f"{losses};")
        return f"{task.name}: {', '.join(parts)} {clock(seconds)}"
    return f"{task.name}: {', '.join([*parts, clock(seconds)])}"


def losses_text(directory: Path) -> str:
    """Return `0.5x 1.210, 1x 1.185, 8x 3.651 nats per token`, or nothing where nothing was measured."""
    losses = headline_losses(load_run(directory))
    if not losses:
        return ""
    return ", ".join(f"{length_text(multiple)} {losses[multiple]:.3f}" for multiple in sorted(losses)) + (
        " nats per token"
    )


def failure_lines(tasks: Sequence[SweepTask], outcomes: Mapping[str, TaskOutcome]) -> list[str]:
    """Return a line for each task that is not finished, the counts, and what resumes; [] if all are."""
    ended = [(task, outcomes.get(task.name, TaskOutcome(WAITING))) for task in tasks]
    unfinished = [(task, outcome) for task, outcome in ended if outcome.state != FINISHED]
    if not unfinished:
        return []
    lines = [_failure_line(task, outcome) for task, outcome in unfinished]
    counts = Counter(outcome.state for _, outcome in ended)
    listed = ", ".join(f"{count} {state}" for state, count in counts.items())
    lines.append(f"{len(tasks)} jobs: {listed}")
    if any(outcome.state != DIVERGED for _, outcome in unfinished):
        lines.append("the same command resumes what is not finished")
    if counts[DIVERGED]:
        lines.append("diverged is final; with --retry the same command trains those runs again")
    return lines


def _failure_line(task: SweepTask, outcome: TaskOutcome) -> str:
    log = task.directory / LOG
    if not log.is_file():
        return f"{task.name}: {outcome.text}"
    return f"{task.name}: {outcome.text} (log: {visible(log)})"
