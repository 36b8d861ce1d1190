"""Run the jobs of a command line: compose and validate all of them first, then run, then show the table."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.errors import RunError, UserError
from posenc.jobs import job_log
from posenc.jobs.command_line import parse, refuse_unknown_flags
from posenc.jobs.compose import compose_jobs
from posenc.jobs.holding import HeldRunError
from posenc.jobs.sweep import fails_fast, named_sweep, run_sweep, show_sweep
from posenc.jobs.sweep_jobs import applicable, asked_of, each_once
from posenc.jobs.sweep_jobs import stands as stands_now
from posenc.jobs.told import IF_HELD, RETRY, SWEEP
from posenc.jobs.validated import frozen, validated
from posenc.report.progress import say
from posenc.training.distributed import alone, current, together

if TYPE_CHECKING:
    from posenc.results.records import Record


def run_command(command: str, arguments: list[str], *, dry_run: bool = False) -> int:
    """`posenc train ...` or `posenc eval ...` from arguments to exit code. Raises UserError, RunError.

    A dry run of a training only says what it would take, and writes nothing; with `--retry` a run that
    diverged is trained again. Under torchrun each process comes here with the same arguments.
    """
    retry = command == "train" and "--retry" in arguments
    if retry:
        arguments = [word for word in arguments if word != "--retry"]
    with _told(RETRY, "1") if retry else nullcontext():
        return together(lambda: _run_command(command, arguments, dry_run))


@contextmanager
def _told(variable: str, value: str) -> Iterator[None]:
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before


def _run_command(command: str, arguments: list[str], dry_run: bool) -> int:
    group = current()
    refuse_unknown_flags(command, arguments)
    line = parse(arguments)
    # Hydra's own parser wants all flags before or after the overrides
    arguments = [*(a for a in arguments if a not in line.overrides), *line.overrides]
    if (line.asks_hydra or dry_run) and not group.is_first:
        return 0
    if line.asks_hydra:
        if line.prints_config:  # wrong input is told in our words there too
            compose_jobs(command, line)
        _call_hydra(command, arguments)
        return 0
    if dry_run:
        from posenc.jobs.dry_run import print_dry_run

        with alone():
            return print_dry_run(compose_jobs(command, line))
    composed = compose_jobs(command, line)
    if composed.sweep and group.size > 1:
        hint = "one torchrun for each run; or -m without torchrun, several at once: hydra/launcher=joblib"
        raise UserError("-m", None, "torchrun makes several processes of one run, not of a sweep", hint=hint)
    if composed.sweep:
        fails_fast(composed)
    composed = group.in_turn(lambda: applicable(command, composed))
    if composed.config is not None:
        from posenc.jobs.hydra_mains import run_composed

        return run_composed(command, line, composed.config)
    if len(composed.jobs) > 1:
        for job in composed.jobs:  # each reads its own documents: all of them at once may be gigabytes
            validated(command, frozen(job.settings)).facts.loaded = None
    if command == "train" and composed.basic:
        composed = each_once(composed)
    places = [validated(command, frozen(job.settings)).directory for job in composed.jobs]
    with named_sweep(composed.jobs):
        asked = asked_of(command, composed.jobs)
        stands = functools.partial(stands_now, command, composed.jobs)
        if composed.basic:
            return run_sweep(command, line, composed, places, stands, asked)
        if composed.launcher is not None:
            from posenc.jobs.launchers import run_launched

            return run_launched(command, line, composed, places, stands, asked)
        codes = _call_hydra(command, arguments)
        show_sweep(list(dict.fromkeys(places)), codes, asked)
        return 1 if any(codes) else 0


def run_job(command: str, settings: dict[str, Any], *, in_sweep: bool) -> int:
    """One job in this process; prints its table unless it is part of a sweep. Returns its exit code."""
    from posenc.evaluation.extend import NotForThisEncodingError
    from posenc.jobs.validate import TrainJob

    directory = None
    try:
        job = validated(command, frozen(settings))
        directory = job.directory
        windows = job.batch_windows if isinstance(job, TrainJob) else None
        current().connect(job.device, directory.name, windows)
        if isinstance(job, TrainJob):
            from posenc.jobs.train_job import run_train

            outcome = run_train(job)
        else:
            from posenc.jobs.eval_job import run_eval

            outcome = run_eval(job)
    except NotForThisEncodingError as error:  # of a sweep that another launcher than ours expanded
        say(error.text())
        return 0 if in_sweep else error.exit_code
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
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
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


def _call_hydra(command: str, arguments: list[str]) -> list[int]:
    """hydra.main with these arguments; the exit codes of the jobs it ran here."""
    from posenc.jobs import hydra_mains

    before, sys.argv = sys.argv, [f"posenc {command}", *arguments]
    try:
        hydra_mains.MAINS[command]()
    finally:
        sys.argv = before
    return hydra_mains.exit_codes
