"""Processes that call functions for the visit: a crash or a full GPU ends one of them, and never the visit.

A worker also has its own state: a model that is prepared in one call is timed in the next.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

LONGEST_REASON = 400  # characters of a failure
SECONDS_TO_END = 2.0  # for a worker that is told to stop
_running: set[Worker] = set()


class WorkerFailedError(Exception):
    """A call that raised an exception, ended its process or took too long."""


class Worker:
    """Call functions in another process, one after the other."""

    def __init__(self, log: Path) -> None:
        """Start the process without waiting for it; what it prints goes into the log."""
        # Not a fork: CUDA cannot be used in a process that was forked from one that used it.
        context = multiprocessing.get_context("spawn")
        self._connection, far_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(far_end, str(log)))
        self._process.start()
        far_end.close()
        _running.add(self)

    @property
    def is_running(self) -> bool:
        """Tell whether it can be called: a failure ends it."""
        return self in _running

    def call(self, function: Callable[..., Any], *arguments: object, timeout: float) -> Any:
        """Return what the function returns. Raises WorkerFailedError, after which the worker is stopped."""
        self.begin(function, *arguments)
        return self.result(timeout)

    def begin(self, function: Callable[..., Any], *arguments: object) -> None:
        """Send a call; `result` waits for its end, so that several workers can begin together."""
        try:
            self._connection.send((function, arguments))
        except OSError as error:
            self.stop()
            raise WorkerFailedError("its process had ended before") from error

    def result(self, timeout: float) -> Any:
        """Return what the function returned that began last. Raises WorkerFailedError."""
        try:
            if not self._connection.poll(max(timeout, 0.0)):
                self.stop()
                raise WorkerFailedError(f"no answer within {timeout:.0f} s")
            has_returned, value = self._connection.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join(SECONDS_TO_END)
            code = self._process.exitcode
            self.stop()
            raise WorkerFailedError(f"its process ended with exit code {code}") from error
        if has_returned:
            return value
        # After an error on a GPU the whole process may be unable to use it, so it ends as well.
        self.stop()
        raise WorkerFailedError(value)

    def stop(self) -> None:
        """End the process."""
        _running.discard(self)
        self._connection.close()  # a process that waits for a call ends by itself
        self._process.join(0.1)
        self._process.terminate()
        self._process.join(SECONDS_TO_END)
        self._process.kill()
        self._process.join()


@atexit.register
def stop_all() -> None:
    """End the workers that still run: at the end of the visit, also where it was interrupted."""
    for worker in list(_running):
        worker.stop()


def _serve(connection: Connection, log: str) -> None:
    """Answer calls until the other end is closed."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, function(*arguments))
        except BaseException as error:  # whatever a compiler, a driver or a package raises is a result
            traceback.print_exc()
            answer = (False, f"{type(error).__name__}: {error}"[:LONGEST_REASON])
        sys.stdout.flush()
        connection.send(answer)
