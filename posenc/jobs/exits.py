"""What is said when a command ends early, and the exit code: 2 wrong input, 1 failed, 130 or 143 stopped."""

from __future__ import annotations

import errno
import os
import sys

from posenc.errors import RunError, UserError
from posenc.jobs.signals import InterruptedRunError, StopFlag


def told_exit_code(error: BaseException, stop: StopFlag) -> int:
    """Says on stderr why the command ends."""
    if isinstance(error, InterruptedRunError):
        if os.environ.get("RANK", "0") == "0":  # of several processes the first one speaks
            again = "the same command begins again and keeps what is finished"
            print(f"{stop.name}: stopped; {again}", file=sys.stderr)
        return stop.exit_code
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EPIPE) and not error.filename:
        error = RunError(f"cannot write the output: {error.strerror}")
    if not isinstance(error, UserError | RunError):
        fault = f"{type(error).__name__}: {error}"
        error = RunError(fault, hint="this is a fault of posenc; --debug shows where")
    print(error.text(), file=sys.stderr)
    return error.exit_code
