"""Begin a process of posenc, run its command, and end it with the right exit code and message."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from dataclasses import replace
from typing import NoReturn

from posenc.cli.commands import app
from posenc.core.console import library_at_work
from posenc.core.errors import RunError, UserError
from posenc.running.invocation import DEBUG, Invocation
from posenc.running.report_error import report_error
from posenc.running.signals import (
    InterruptedRunError,
    StopFlag,
    ignore_signals,
    leave_at_once,
    stop_with_parent,
)

DEBUG_FLAG = "--debug"  # wherever it stands
COMPLETING = "_POSENC_COMPLETE"  # Typer's environment variable while it answers a TAB


def main(command: str | None = None) -> None:
    """Run the console script and exit. train.py and eval.py of a clone name the command to put in front."""
    _replace_closed_streams()
    stop_with_parent()
    arguments = sys.argv[1:] if command is None else [command, *sys.argv[1:]]
    invocation = Invocation.read()
    if DEBUG_FLAG in arguments:
        arguments = [word for word in arguments if word != DEBUG_FLAG]
        invocation = replace(invocation, debug=True)
        os.environ[DEBUG] = "1"  # Hydra reads it, and so do the jobs of a sweep
    try:
        with StopFlag() as stop:
            _run(arguments, invocation, stop)
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if library_at_work():
            leave_at_once(exit_code)
        atexit.register(ignore_signals)  # the function registered last is called first
        raise


def _replace_closed_streams() -> None:
    """Put /dev/null in the place of an output that the caller has closed: `posenc compare >&-`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123


def _run(arguments: list[str], invocation: Invocation, stop: StopFlag) -> NoReturn:
    """Run the command and exit. A command that has something to save takes the signals over from `stop`."""
    try:
        app(arguments, prog_name="posenc", obj=invocation)
    except (InterruptedRunError, Exception) as error:
        if COMPLETING in os.environ:
            sys.exit()
        if invocation.debug and isinstance(error, Exception):
            if not isinstance(error, UserError | RunError):
                raise
            traceback.print_exc()
        sys.exit(report_error(error, stop))
    sys.exit()
