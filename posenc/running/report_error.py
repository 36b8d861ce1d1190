"""Report on stderr why a command ends early, in one line and a hint, and return its exit code."""

from __future__ import annotations

import errno
import signal
import traceback

from posenc.core.console import say, wrapped
from posenc.core.errors import RunError, UserError, first_line, says_out_of_memory
from posenc.core.first_signals import CODES, STOPPED
from posenc.core.torchrun import is_another_process
from posenc.running.signals import InterruptedRunError, StopFlag


def report_error(error: BaseException, stop: StopFlag) -> int:
    """Print on stderr why the command ends; return its exit code."""
    if isinstance(error, InterruptedRunError):
        if not is_another_process():
            say(f"{stop.name}: {STOPPED}")
        return stop.exit_code or CODES[signal.SIGTERM]  # another StopFlag may have received it
    if isinstance(error, UserError | RunError):
        explained: UserError | RunError = error
    else:
        explained = _fault_of_the_machine(error) or _fault_of_the_code(error)
    say(wrapped(explained.text()))
    return explained.exit_code


def _fault_of_the_code(error: BaseException) -> RunError:
    """Return the error to show for a fault of posenc or of a plug-in, with the line that raised."""
    # The line that raised is enough for a report. --debug shows the rest.
    file, line, *_ = traceback.extract_tb(error.__traceback__)[-1]
    hint = f"a fault of posenc or of a plug-in, at {file}:{line}; --debug shows the whole traceback"
    return RunError(f"{type(error).__name__}: {error}", hint=hint)


def _fault_of_the_machine(error: BaseException) -> RunError | None:
    """Return the error to show if the machine lacks something, rather than posenc being wrong."""
    # Errors of posenc's own files are worded where they arise, so
    # one that names a file is a fault of the code.
    if isinstance(error, OSError) and not error.filename:
        if error.errno in (errno.ENOSPC, errno.EPIPE):
            return RunError(f"cannot write the output: {error.strerror}")
        if error.errno == errno.ENOENT:  # os.getcwd fails without naming a file
            return RunError("the working folder no longer exists", hint="cd into a folder that does")
    if says_out_of_memory(error):
        return RunError(f"not enough memory: {first_line(error)}", hint="a smaller model, length or batch")
    return None
