"""Run the jobs of a command line: compose and validate all of them first, then run, then show the table."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.errors import RunError, UserError, nearest
from posenc.jobs.compose import Composed, Jobs, compose_jobs, parse
from posenc.jobs.sweep import SWEEP, named_sweep, run_sweep, show_sweep
from posenc.report.progress import say
from posenc.training.distributed import alone, current, together

if TYPE_CHECKING:
    from posenc.results.records import Record

OFFERED = ("--multirun", "--dry-run", "--cfg", "--config-dir", "--info", "--debug", "--help", "--hydra-help")


def run_command(command: str, arguments: list[str], *, dry_run: bool = False) -> int:
    """`posenc train ...` or `posenc eval ...` from arguments to exit code. Raises UserError, RunError.

    A dry run of a training only says what it would take, and writes nothing. Under torchrun each process
    comes here with the same arguments.
    """
    return together(lambda: _run_command(command, arguments, dry_run))


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
    composed = group.in_turn(lambda: _applicable(command, composed))
    if not composed.sweep:
        codes = _call_hydra(command, arguments)
        return codes[-1] if codes else 1
    if len(composed.jobs) > 1:
        for job in composed.jobs:  # each reads its own documents: all of them at once may be gigabytes
            validated(command, _frozen(job.settings)).facts.loaded = None
    places = [validated(command, _frozen(job.settings)).directory for job in composed.jobs]
    with named_sweep(composed.jobs):
        if composed.basic:
            finished = [_is_finished(command, job) for job in composed.jobs]
            asked = _asked(command, composed.jobs)
            return run_sweep(command, line, composed, places, finished, asked)
        codes = _call_hydra(command, arguments)
        show_sweep(list(dict.fromkeys(places)), codes, _asked(command, composed.jobs))
        return 1 if any(codes) else 0


def _applicable(command: str, composed: Jobs) -> Jobs:
    """The jobs, every one validated. Raises UserError for the first that is wrong.

    In a sweep an extension that is not for a run's encoding is left out, and named; unless nothing is left.
    """
    from posenc.evaluation.extend import NotForThisEncodingError

    count, kept, refused = len(composed.jobs), [], []
    if not composed.jobs:
        hint = "glob() chooses among the choices of a group, such as encoding; of others name each: seed=0,1"
        raise UserError("-m", None, "there is no job in this sweep", hint=hint)
    for number, job in enumerate(composed.jobs, 1):
        try:
            validated(command, _frozen(job.settings))
            kept.append(job)
        except NotForThisEncodingError as error:
            if count == 1:
                raise
            refused.append((job.settings["run"], error))
        except UserError as error:
            where = f"in job {number} of {count} ({' '.join(job.overrides)})"
            raise error.within(where) if count > 1 else error from None
    if not kept:
        raise refused[0][1]
    for run in dict.fromkeys(run for run, _ in refused):
        say(f"{run}: left out, as they do not apply:")
        for reason in (reason for of, reason in refused if of == run):
            say(f"  {reason.value}: {reason.problem}")
    return dataclasses.replace(composed, jobs=kept)


def _asked(command: str, jobs: list[Composed]) -> dict[Path, set[tuple[str, str]]]:
    """What the jobs of an evaluation measure, by run; a training shows whatever its runs have."""
    if command != "eval":
        return {}
    from posenc.jobs.eval_job import asked_targets

    found: dict[Path, set[tuple[str, str]]] = {}
    for job in jobs:
        validated_job = validated(command, _frozen(job.settings))
        found.setdefault(validated_job.directory, set()).update(asked_targets(validated_job))
    return found


def _is_finished(command: str, job: Composed) -> bool:
    if command != "train":
        return False
    from posenc.jobs.train_job import is_finished

    return is_finished(validated(command, _frozen(job.settings)))


def validated(command: str, frozen: str) -> Any:
    """The validated job of settings written as JSON; each is validated once in a process."""
    return _validated(command, frozen)


@functools.cache
def _validated(command: str, frozen: str) -> Any:
    settings = json.loads(frozen)
    if command == "train":
        from posenc.jobs.validate import train_job

        return train_job(settings)
    from posenc.jobs.eval_job import eval_job

    return eval_job(settings)


def _frozen(settings: dict[str, Any]) -> str:
    return json.dumps(settings)


def run_job(command: str, settings: dict[str, Any], *, in_sweep: bool) -> int:
    """One job in this process; prints its table unless it is part of a sweep. Returns its exit code."""
    from posenc.evaluation.extend import NotForThisEncodingError

    try:
        job = validated(command, _frozen(settings))
        windows = job.batch_windows if command == "train" else None
        current().connect(job.device, job.directory.name, windows)
        if command == "train":
            from posenc.jobs.train_job import run_train

            outcome = run_train(job)
        else:
            from posenc.jobs.eval_job import run_eval

            outcome = run_eval(job)
    except NotForThisEncodingError as error:  # of a sweep that another launcher than ours expanded
        say(error.text())
        return 0 if in_sweep else error.exit_code
    except (UserError, RunError) as error:
        say(error.text())
        return error.exit_code
    except Exception as error:  # a plug-in's, or our own fault: the run's log has the traceback
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename}:{last.lineno}; --debug shows all of it"
        say(RunError(f"{type(error).__name__}: {error}", hint=where).text())
        return 1
    shows = current().is_first and not in_sweep and SWEEP not in os.environ
    if outcome.exit_code == 0 and shows:
        show_run(job.directory, outcome.records)
    return outcome.exit_code


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


def refuse_unknown_flags(command: str, arguments: list[str]) -> None:
    """Raises UserError, naming the nearest one, for a flag that neither Hydra nor posenc has."""
    from hydra._internal.utils import get_args_parser

    known = [flag for flag in get_args_parser()._option_string_actions if flag.startswith("--")]
    offered = [flag for flag in OFFERED if command == "train" or flag != "--dry-run"]
    for word in arguments:
        flag = word.partition("=")[0]
        if flag.startswith("--") and not any(one.startswith(flag) for one in known):
            close = nearest(flag, offered)
            hint = f"did you mean: {close}\n" if close else ""
            hint += "settings are written KEY=VALUE: encoding=rope, seed=1"
            raise UserError(flag, None, "there is no such option", allowed=", ".join(offered), hint=hint)


def _call_hydra(command: str, arguments: list[str]) -> list[int]:
    """hydra.main with these arguments; the exit codes of the jobs it ran here."""
    from posenc.jobs import hydra_mains

    before, sys.argv = sys.argv, [f"posenc {command}", *arguments]
    try:
        hydra_mains.MAINS[command]()
    finally:
        sys.argv = before
    return hydra_mains.exit_codes
