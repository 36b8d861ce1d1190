"""What submitit leaves open: a job that ends without a word, one that goes back into Slurm's queue."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from submitit.core.core import Job
from submitit.core.job_environment import JobEnvironment
from submitit.core.utils import FailedJobError, UncompletedJobError
from submitit.local import local
from submitit.slurm.slurm import SlurmInfoWatcher, SlurmJob

from posenc.core.console import say
from posenc.core.errors import visible
from posenc.running.signals import CODES, InterruptedRunError

OVER = (
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "TIMEOUT",
    "GONE",
)
DELAY = 60  # seconds between two looks at the queue, at most
AGAIN = 10.0  # seconds to the next SIGTERM


class Queue(SlurmInfoWatcher):
    """Asks the queue how jobs are, not the accounting.

    A cluster may keep none, and then submitit would wait for ever for a job that was killed.
    """

    _said = ""

    def _make_command(self) -> list[str] | None:
        if not self._registered - self._finished:
            return None
        return [
            "squeue",
            "--noheader",
            "--array",
            "--states=all",
            f"--user={os.getuid()}",
            "--format=%i|%T|%r",
        ]

    def read_info(self, string: bytes | str) -> dict[str, dict[str, str]]:
        """States by job. Slurm forgets a job minutes after its end: GONE."""
        text = string if isinstance(string, str) else string.decode()
        rows = [line.strip().split("|", 2) for line in text.splitlines()]
        told = {row[0]: (row[1], row[2]) for row in rows if len(row) == 3}
        ours = {job: told.get(job, ("GONE", "None")) for job in self._registered - self._finished}
        self._say([(state, reason) for state, reason in ours.values() if state not in OVER])
        return {job: {"State": state} for job, (state, _) in ours.items()}

    def _say(self, left: list[tuple[str, str]]) -> None:
        """`Slurm: 2 running, 3 pending (Priority)`, when it has changed. Some reasons mean for ever."""
        states = Counter(
            state.lower() + (f" ({reason})" if state == "PENDING" and reason != "None" else "")
            for state, reason in left
        )
        line = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
        if line and line != self._said:
            say(f"Slurm: {line}")
        self._said = line

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether nothing more will come of it."""
        return self.get_state(job_id, mode=mode) in OVER


@contextmanager
def waited_for() -> Iterator[None]:
    """Every job of a launch is waited for to its end; one without a readable result is told and counts as 1.

    submitit would raise for the first of them, and leave the others alone. When the waiting is interrupted,
    processes of this machine save and end, which submitit would leave running; Slurm's go on.
    """
    every: Any = Job
    wait, watcher, start = every.results, SlurmJob.watcher, local.start_controller
    started: list[subprocess.Popen[bytes]] = []

    def results(job: Any) -> list[Any]:
        try:
            return list(wait(job))
        except Exception as error:  # what the file of the result holds decides which
            _say_lost(job, error)
            return [JobReturn(status=JobStatus.COMPLETED, _return_value=1)]

    def start_controller(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(start(*args, **kwargs))
        return started[-1]

    every.results, SlurmJob.watcher = results, Queue(delay_s=DELAY)
    local.start_controller = start_controller
    try:
        yield
    except InterruptedRunError:
        _stop(started)
        raise
    finally:
        every.results, SlurmJob.watcher, local.start_controller = wait, watcher, start


def _say_lost(job: Any, error: Exception) -> None:
    """A job whose result there is not, or that cannot be read."""
    lines = [visible(line) for line in str(error).strip().splitlines()]
    if isinstance(error, FailedJobError):  # its traceback
        said, last = "ended without a result", lines[-1:]
    elif isinstance(error, UncompletedJobError):
        said, last = "ended without a result", []
    else:
        said, last = "left a result that cannot be read", [f"{type(error).__name__}: {''.join(lines[:1])}"]
    text = f"job {job.job_id} of submitit {said}, state {job.state}; what it printed: {job.paths.stderr}"
    say("\n  ".join([text, *last]))


def _stop(started: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM until all have ended: each passes it on to its job, which saves; one that starts ignores it."""
    left = [process for process in started if process.poll() is None]
    if left:
        say(f"{len(left)} jobs of this machine save and stop" if len(left) > 1 else "a job saves and stops")
    while left:
        for process in left:
            process.terminate()
        end = time.monotonic() + AGAIN
        while left and time.monotonic() < end:
            time.sleep(0.1)
            left = [process for process in left if process.poll() is None]


def preemptible(run: Callable[[], int]) -> int:
    """Run in a Slurm job: near its time limit, or pre-empted, it saves and goes back into the queue.

    submitit's signal (USR2) is turned into one that the run saves on; submitit's own handler does the rest. A
    job that Slurm itself takes away (scontrol requeue) or that was cancelled leaves no result behind: for who
    waits, that would be the end.
    """
    asked = JobEnvironment._usr_sig()
    requeue = signal.getsignal(asked)
    assert callable(requeue)
    if asked not in CODES:
        signal.signal(signal.SIGUSR1, requeue)  # while there is no run to save
        signal.signal(asked, lambda number, frame: signal.raise_signal(signal.SIGUSR1))
    code = run()
    if code not in CODES.values():
        return code
    if _state() == "RUNNING":
        requeue(asked, None)  # exits; raises if it was put back too often
    sys.exit(code)


def _state() -> str:
    """Of this job, as Slurm sees it."""
    ask = ["scontrol", "--oneliner", "show", "job", os.environ.get("SLURM_JOB_ID", "")]
    try:
        told = subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return "UNKNOWN"
    found = re.search(r"\bJobState=(\w+)", told)
    return found[1] if found else "UNKNOWN"
