"""What did not finish, why, and where its log is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posenc.core.errors import visible
from posenc.results.load import Run

FINISHED, DIVERGED, NOT_STARTED = "finished", "diverged", "not started"


@dataclass(frozen=True)
class Ended:
    """How a job of a sweep ended: `failed`, `killed by SIGKILL`, `not started`, or as a run's status."""

    name: str
    state: str
    reason: str | None = None
    log: Path | None = None


def failures_lines(runs: Sequence[Run]) -> list[str]:
    """A line for every run that is not finished: name, state, reason, log. Names are escaped for printing."""
    return [_line(run) for run in runs if run.state != FINISHED]


def sweep_lines(jobs: Sequence[Ended]) -> list[str]:
    """Every job that is not finished, then how many are what and what to do about the rest; [] if all are."""
    open_jobs = [job for job in jobs if job.state != FINISHED]
    if not open_jobs:
        return []
    lines = []
    for job in open_jobs:
        lines.append(f"{job.name}: {job.state}" + (f", {job.reason}" if job.reason else ""))
        if job.log is not None:
            lines.append(f"  log: {job.log}")
    counts = Counter(job.state for job in jobs)
    several = f"{len(jobs)} job{'s' * (len(jobs) > 1)}"
    lines.append(f"{several}: " + ", ".join(f"{count} {state}" for state, count in counts.items()))
    if any(job.state != DIVERGED for job in open_jobs):
        lines.append("the same command goes on with what is not finished")
    if counts[DIVERGED]:
        lines.append("diverged is final; with --retry the same command trains those again from the start")
    return [visible(line) for line in lines]


def _line(run: Run) -> str:
    state, reason = run.state, run.reason
    if state == "running" and not reason:
        reason = f"by process {run.status.get('pid', '?')} on {run.status.get('host', '?')}"
    words = reason if reason and reason.startswith(state) else ", ".join(filter(None, [state, reason]))
    log = f" (log: {run.path / 'log.txt'})" if (run.path / "log.txt").is_file() else ""
    return visible(f"{run.name}: {words}{log}")
