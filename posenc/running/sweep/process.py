"""Run a job of a sweep as a process of its own, on this machine or on a node of Ray."""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from posenc.running.invocation import PARENT

# How long the output of a job is read after its end. What the job has started may hold it open for ever.
READ_SECONDS = 2.0
KEPT_LINES = 20  # last lines of a job's output, to find the error in
ERROR = "error: "  # begins the line in which a job says why it fails


class JobProcess:
    """Run a job as a process, and read what it prints in a thread.

    arguments: the program and its arguments.
    variables: of the environment, beside those of this process.
    on_line: called in the thread, with each line that is not empty.
    folder: where the job runs; None for the folder of this process.
    stdin: as in `subprocess.Popen`; with None the job reads what this process reads.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        on_line: Callable[[str], None],
        *,
        folder: Path | None = None,
        stdin: int | None = None,
    ) -> None:
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._on_line = on_line
        self.process = subprocess.Popen(
            list(arguments),
            cwd=folder,
            # PARENT: the job stops once this process is gone. Otherwise it would hold the lock of the run
            env={**os.environ, **variables, PARENT: str(os.getpid())},
            stdin=stdin,
            stdout=subprocess.PIPE,
            # One pipe keeps the lines of both in the order in which they were printed.
            stderr=subprocess.STDOUT,
            # A library may print bytes that are no UTF-8, and the reader must not end at them.
            encoding="utf-8",
            errors="replace",
        )
        # a daemon thread: a process that the job has started may hold its output open for ever
        self._reader = threading.Thread(target=self._read, daemon=True)
        try:
            self._reader.start()
        except BaseException:  # Ray cancels by an exception, which may strike here
            self.process.kill()
            raise

    def finish_reading(self) -> None:
        """Read what a job that has ended printed last, for READ_SECONDS at most."""
        # The end of a process does not close the pipe if a process of its own still has it open.
        self._reader.join(READ_SECONDS)

    def _read(self) -> None:
        """Pass the output on, line by line, and keep the last lines."""
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                text = line.rstrip()
                if text:
                    self.last_lines.append(text)
                    self._on_line(text)
