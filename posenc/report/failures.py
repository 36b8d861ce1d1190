"""What did not finish, why, and where its log is."""

from __future__ import annotations

from collections.abc import Sequence

from posenc.results.load import Run
from posenc.results.names import visible


def failures_lines(runs: Sequence[Run]) -> list[str]:
    """A line for every run that is not finished: name, state, reason, log. Names are escaped for printing."""
    return [_line(run) for run in runs if run.state != "finished"]


def _line(run: Run) -> str:
    reason = run.problem or run.status.get("reason")
    if run.state == "running" and not reason:
        reason = f"by process {run.status.get('pid', '?')} on {run.status.get('host', '?')}"
    text = f"{run.name}: {run.state}" + (f", {reason}" if reason else "")
    return visible(f"{text} (log: {run.path / 'log.txt'})")
