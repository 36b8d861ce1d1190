"""Print what the jobs of a sweep print, each line once."""

from __future__ import annotations

from collections.abc import Callable

from posenc.core.console import say
from posenc.core.errors import visible
from posenc.running.sweep.process import ERROR

LEFT_OUT = "lines that another job has printed are left out from here on; log.txt of each run has all"


class JobOutput:
    """Print the lines of all jobs of a sweep.

    What one job says of its corpus, all others say as well: 19 jobs gave the same warning 19 times. So a line
    that another job has printed is left out, unless it is an error.
    """

    def __init__(self) -> None:
        # Each job has a thread, and Python does `setdefault` in one piece.
        self._first_job: dict[str, str] = {}  # by line
        self._has_said_so = False

    def of_job(self, name: str) -> Callable[[str], None]:
        """Return a function that prints a line of the job of this name."""

        def print_line(line: str) -> None:
            is_repeated = self._first_job.setdefault(line, name) != name
            if not is_repeated or line.startswith(ERROR):
                say(f"{name}: {visible(line)}")
            elif not self._has_said_so:
                self._has_said_so = True
                say(LEFT_OUT)

        return print_line
