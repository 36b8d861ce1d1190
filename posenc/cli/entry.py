"""Begin a process of posenc, run its command, and end it with the right exit code and message."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import typer

from posenc.cli.commands import COMMANDS, ROOT_OPTIONS, app
from posenc.cli.usage import is_help_printed, is_usage_error, usage_error
from posenc.cli.verbs import refuse_wrong_verb
from posenc.core.errors import RunError, UserError
from posenc.core.first_signals import CODES
from posenc.core.library_calls import library_at_work
from posenc.running.invocation import DEBUG, Invocation
from posenc.running.report_error import report_error
from posenc.running.signals import (
    ONE_WISH,
    InterruptedRunError,
    StopFlag,
    ignore_signals,
    leave_at_once,
    stop_with_parent,
)

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

DEBUG_FLAG = "--debug"  # anywhere on the line
COMPLETING = "_POSENC_COMPLETE"  # Typer's environment variable while it answers a TAB


def run(command: str | None = None) -> None:
    """Run the console script and exit. `command`, if given, is put before the arguments."""
    _replace_closed_streams()
    # Python drops an exception that is raised in a finalizer, and a signal may strike there.
    sys.unraisablehook = _repeat_lost_signal
    stop_with_parent()
    arguments = sys.argv[1:] if command is None else [command, *sys.argv[1:]]
    invocation = Invocation.read()
    # The flag is taken here, since it may stand behind any command, and not all of them know it.
    if DEBUG_FLAG in arguments:
        arguments = [argument for argument in arguments if argument != DEBUG_FLAG]
        invocation = replace(invocation, debug=True)
        os.environ[DEBUG] = "1"  # Hydra reads it, and so do the jobs of a sweep
    try:
        # StopFlag takes over from `leave_at_signals`, which clears nothing up.
        with StopFlag(has_begun=False) as stop:
            _run(arguments, invocation, stop)
    except InterruptedRunError:  # a second signal, while the first one was handled
        leave_at_once(CODES[signal.SIGINT])
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
        # Python's own exit would crash while that library still works in its thread.
        if library_at_work():
            leave_at_once(exit_code)
        atexit.register(ignore_signals)  # the function registered last is called first
        raise


def _repeat_lost_signal(unraisable: UnraisableHookArgs) -> None:
    """Send a signal again whose exception was lost, such as in a finalizer; show other errors."""
    if not isinstance(unraisable.exc_value, InterruptedRunError):
        sys.__unraisablehook__(unraisable)
        return
    # A signal within ONE_WISH of the last one counts as its copy, and would change nothing.
    timer = threading.Timer(2 * ONE_WISH, os.kill, (os.getpid(), signal.SIGINT))
    # The process may end before that, and must not wait for its timer.
    timer.daemon = True
    timer.start()


def _replace_closed_streams() -> None:
    """Replace an output that the caller has closed by /dev/null: `posenc compare >&-`."""
    for name in ("stdout", "stderr"):
        # Python sets a stream to None if its file is closed, and
        # writing to it would end with an AttributeError.
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123


def _run(arguments: list[str], invocation: Invocation, stop: StopFlag) -> NoReturn:
    """Run the command and exit. A command that has something to save takes the signals over from `stop`."""
    try:
        # At a TAB the command line is in other variables, and there is no verb to refuse.
        if COMPLETING not in os.environ:
            refuse_wrong_verb(arguments, COMMANDS, ROOT_OPTIONS)
        # Otherwise Typer would print errors in words of its own, and exit itself.
        exit_code = app(arguments, prog_name="posenc", obj=invocation, standalone_mode=False)
    except (InterruptedRunError, Exception) as error:
        # A TAB offers nothing here: an error would be printed into the line that the user is typing.
        if COMPLETING in os.environ:
            sys.exit()
        # Typer has printed the help; the exit code still says that the line named no command.
        if is_help_printed(error):
            sys.exit(UserError.exit_code)
        if is_usage_error(error):
            sys.exit(report_error(usage_error(error, typer.main.get_command(app), arguments), stop))
        if invocation.debug and isinstance(error, Exception):
            if not isinstance(error, UserError | RunError):
                raise
            traceback.print_exc()
        sys.exit(report_error(error, stop))
    sys.exit(exit_code)
