"""Say in environment variables, to a process on this machine or on a node, that it runs a job of a sweep."""

from __future__ import annotations

from posenc.core.progress import PROGRESS
from posenc.running.invocation import SWEEP, WAIT

# Each job is told this many seconds times the jobs at once, so the sweep prints one line a minute.
PROGRESS_SECONDS = 60  # between two lines of progress, counted over all running jobs


def job_environment(sweep: str, *, at_once: int, waits: bool) -> dict[str, str]:
    """Return the variables of one job of a sweep of which `at_once` jobs run together.

    waits: whether the job waits for a run that another process holds. Otherwise it ends at once.
    """
    return {
        SWEEP: sweep,
        PROGRESS: str(PROGRESS_SECONDS * at_once),
        WAIT: str(int(waits)),
        "PYTHONIOENCODING": "utf-8",  # a pipe is ASCII in some locales, and names are not
    }
