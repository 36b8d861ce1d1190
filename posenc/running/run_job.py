"""Run one job in this process, print its table, and report how a command ended early.

Exit codes: 2 wrong input, 1 failed, 130 or 143 stopped.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.core.console import say
from posenc.core.errors import RunError, UserError
from posenc.running.env_vars import IF_HELD, SWEEP, debugging
from posenc.running.signals import CODES, InterruptedRunError, StopFlag

if TYPE_CHECKING:
    from posenc.results.schema import Record

# What the loader of libraries says; not "in static TLS block", which is no matter of size.
NO_ROOM_TO_LOAD = ("failed to map segment", "annot allocate memory: ", "object: Cannot allocate memory")


def run_job(command: str, settings: dict[str, Any], *, in_sweep: bool) -> int:
    """Run one job; print its table unless it is part of a sweep. Returns its exit code."""
    from posenc.running.jobs import validated
    from posenc.running.run_lock import HeldRunError
    from posenc.running.train_job import TrainJob
    from posenc.training.distributed import current

    directory = None
    try:
        job = validated(command, settings)
        directory = job.directory
        windows = job.batch_windows if isinstance(job, TrainJob) else None
        current().connect(job.device, directory.name, windows)
        if isinstance(job, TrainJob):
            from posenc.running.train_run import run_train

            outcome = run_train(job)
        else:
            from posenc.running.eval_run import run_eval

            outcome = run_eval(job)
    except HeldRunError as error:
        if IF_HELD in os.environ:
            return int(os.environ[IF_HELD])
        say(error.text())
        return error.exit_code
    except (UserError, RunError) as error:
        _log(directory, error.problem)
        say(error.text())
        return error.exit_code
    except (Exception, SystemExit) as error:  # a plug-in's, or our own fault: the log has the traceback
        what = f"{type(error).__name__}: {error}"
        _log(directory, what)
        if debugging():
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}; --debug shows all of it"
        say(RunError(what, hint=where).text())
        return 1
    if outcome.exit_code == 0 and current().is_first and not in_sweep and SWEEP not in os.environ:
        show_run(job.directory, outcome.records)
    return outcome.exit_code


def _log(directory: Path | None, reason: str) -> None:
    """Write the exception that is being handled to the run's log, if the run has a directory."""
    from posenc.running.run_directory import append_log
    from posenc.training.distributed import current

    if directory is not None and directory.is_dir() and current().is_first:
        with suppress(OSError):  # a full disk must not hide the reason
            append_log(directory, traceback.format_exc(), reason)


def show_run(directory: Path, records: list[Record] | None) -> None:
    """Print the run's table: of these records, or of all; beside an extension what was measured without."""
    from posenc.report.writers import show_run as show
    from posenc.results.load import load_run
    from posenc.results.selection import target_set

    run = load_run(directory)
    if records is not None and run.problem is None:
        extended = [r for r in records if r["extend"] is not None]
        same = {(r["protocol"], r["checkpoint_step"], target_set(r)) for r in records}
        plain = [
            r
            for r in run.records
            if r["extend"] is None and (r["protocol"], r["checkpoint_step"], target_set(r)) in same
        ]
        run.records = [*plain, *extended] if extended else records
    show(run, sys.stdout)


def report_error(error: BaseException, stop: StopFlag) -> int:
    """Print on stderr why the command ends; return its exit code."""
    if isinstance(error, InterruptedRunError):
        if os.environ.get("RANK", "0") == "0":  # of several processes the first one speaks
            say(f"{stop.name}: stopped; what is on disk stays; the same command begins again")
        return stop.exit_code or CODES[signal.SIGTERM]  # it struck while another flag held the signals
    shown = error if isinstance(error, UserError | RunError) else _by_the_machine(error)
    if shown is None:
        fault = f"{type(error).__name__}: {error}"
        shown = RunError(fault, hint="this is a fault of posenc; --debug shows where")
    say(shown.text())
    return shown.exit_code


def _by_the_machine(error: BaseException) -> RunError | None:
    """Return the error to show if the machine lacks something, rather than posenc being wrong."""
    if isinstance(error, OSError) and not error.filename:
        if error.errno in (errno.ENOSPC, errno.EPIPE):
            return RunError(f"cannot write the output: {error.strerror}")
        if error.errno == errno.ENOENT and not _has_working_folder():
            return RunError("the working folder is gone", hint="cd into one that is there")
    cannot_load = isinstance(error, ImportError | OSError) and any(w in str(error) for w in NO_ROOM_TO_LOAD)
    out_of_memory = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    if cannot_load or out_of_memory:
        detail = f": {error}" if str(error) else ""
        hint = "a smaller model or batch; ulimit -v tells a limit"
        return RunError(f"not enough memory{detail}", hint=hint)
    return None


def _has_working_folder() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return False
    return True
