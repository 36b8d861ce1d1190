"""Write the lines of a sweep for stderr: how each task goes, and at the end what is not finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from posenc.core.errors import visible
from posenc.core.quantities import clock, length_text
from posenc.core.run_states import DIVERGED, FINISHED
from posenc.results.runs import load_run
from posenc.results.summary import headline_losses
from posenc.running.run_directory import LOG
from posenc.running.sweep.task import WAITING, SweepTask, TaskOutcome


def begin_line(task: SweepTask, share: Mapping[str, str]) -> str:
    """Return `[3/12] rope seed=0: begins, OMP_NUM_THREADS=1`."""
    variables = [f"{name}={value}" for name, value in share.items()]
    return ", ".join([f"{task.name}: begins", *variables])


def settled_line(task: SweepTask, outcome: TaskOutcome, finished: str) -> str:
    """Return the line of a task whose run ended earlier; `finished` is its text if it did not diverge."""
    if outcome.state == DIVERGED:
        return f"{task.name}: diverged before, which is final without --retry"
    return f"{task.name}: {finished}"


def end_line(task: SweepTask, outcome: TaskOutcome, seconds: float) -> str:
    """Return the line of a task that has ended: its losses and the time it took, or what went wrong."""
    if outcome.state != FINISHED:
        return f"{task.name}: {outcome.text}"
    # A run may be measured by several tasks of `posenc eval`, so its
    # directory does not tell what this one did.
    losses = "" if task.evaluation is None else losses_text(task.directory)
    if losses:
        return f"{task.name}: finished, {losses}; {clock(seconds)}"
    return f"{task.name}: finished, {clock(seconds)}"


def losses_text(directory: Path) -> str:
    """Return `0.5x 1.210, 1x 1.185, 8x 3.651 nats/token`; an empty text if nothing was measured."""
    losses = headline_losses(load_run(directory))
    if not losses:
        return ""
    texts = [f"{length_text(multiple)} {losses[multiple]:.3f}" for multiple in sorted(losses)]
    return f"{', '.join(texts)} nats/token"


def failure_lines(tasks: Sequence[SweepTask], outcomes: Mapping[str, TaskOutcome]) -> list[str]:
    """Return a line for each task that is not finished, the counts, and how to go on; [] if all finished."""
    # A task without an outcome was still waiting when a signal ended the sweep.
    all_outcomes = [outcomes.get(task.name, TaskOutcome(WAITING)) for task in tasks]
    lines = []
    for task, outcome in zip(tasks, all_outcomes, strict=True):
        if outcome.state != FINISHED:
            lines.append(_failure_line(task, outcome))
    if not lines:
        return []
    counts = Counter(outcome.state for outcome in all_outcomes)
    listed = ", ".join(f"{count} {state}" for state, count in counts.items())
    lines.append(f"{len(tasks)} jobs: {listed}")
    # Repeating the command does nothing for a run that diverged.
    if any(state not in (FINISHED, DIVERGED) for state in counts):
        lines.append("the same command resumes what is not finished")
    if counts[DIVERGED]:
        lines.append("diverged is final; with --retry the same command trains those runs again")
    return lines


def _failure_line(task: SweepTask, outcome: TaskOutcome) -> str:
    log = task.directory / LOG
    if not log.is_file():
        return f"{task.name}: {outcome.text}"
    return f"{task.name}: {outcome.text} (log: {visible(log)})"
