"""One job in this process: the way Hydra runs it, what its end is told as, and its table."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.errors import HydraException
from omegaconf import DictConfig

from posenc.config.compose import initialized, plain_settings
from posenc.config.hydra_adapter import run_as_hydra
from posenc.config.overrides import CommandLine
from posenc.core.console import say
from posenc.core.errors import RunError, UserError, first_line
from posenc.running import job_log
from posenc.running.holding import HeldRunError
from posenc.running.told import IF_HELD, SWEEP, debugging
from posenc.running.validated import validated
from posenc.training.distributed import current

if TYPE_CHECKING:
    from posenc.results.records import Record


def run_composed(command: str, line: CommandLine, config: DictConfig) -> int:
    """The one job of a command line as `hydra.main` runs it: with its logging, callbacks and environment.

    Not by `hydra.main`, which composes the same configuration twice more (0.2 s each). Raises UserError for
    what Hydra cannot do.
    """

    def task(settings: DictConfig) -> int:
        return run_job(command, plain_settings(command, settings), in_sweep=False)

    with initialized(line.config_dir):
        try:
            done = run_as_hydra(command, config, task)
        except (HydraException, OSError, ValueError) as error:  # the job's own are in `done`
            raise UserError("hydra", None, first_line(error), hint="see --cfg hydra") from error
    code: int = done.return_value  # raises what the job raised
    return code


def run_job(command: str, settings: dict[str, Any], *, in_sweep: bool) -> int:
    """One job in this process; prints its table unless it is part of a sweep. Returns its exit code."""
    from posenc.running.train_job import TrainJob

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
    except (Exception, SystemExit) as error:  # a plug-in's, or our own fault: the run's log has the traceback
        what = f"{type(error).__name__}: {error}"
        _log(directory, what)
        if debugging():
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}; --debug shows all of it"
        say(RunError(what, hint=where).text())
        return 1
    shows = current().is_first and not in_sweep and SWEEP not in os.environ
    if outcome.exit_code == 0 and shows:
        show_run(job.directory, outcome.records)
    return outcome.exit_code


def _log(directory: Path | None, reason: str) -> None:
    """The exception that is being handled, into the log of the run, if there is one."""
    if directory is not None and directory.is_dir() and current().is_first:
        with suppress(OSError):  # a full disk must not hide the reason
            job_log.add(directory, traceback.format_exc(), reason)


def show_run(directory: Path, records: list[Record] | None) -> None:
    """The run's own table on stdout: of these records, or of all that it has.

    What was measured before on the same targets without an extension stands beside one.
    """
    from posenc.report.table import show_run as show
    from posenc.results.load import load_run
    from posenc.results.selection import target_set

    run = load_run(directory)
    if records is not None and run.problem is None:
        asked = {(r["protocol"], r["checkpoint_step"], target_set(r)) for r in records}
        plain = [
            r
            for r in run.records
            if r["extend"] is None and (r["protocol"], r["checkpoint_step"], target_set(r)) in asked
        ]
        extended = any(r["extend"] is not None for r in records)
        run.records = [*plain, *(r for r in records if r["extend"] is not None)] if extended else records
    show(run, "table", "nats", sys.stdout)
