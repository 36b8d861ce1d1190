"""Run the jobs of a command line: compose and validate all of them first, then run, then show the table."""

from __future__ import annotations

import functools
from contextlib import nullcontext

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse, refuse_unknown_flags
from posenc.core.errors import UserError
from posenc.running.sweep import fails_fast, named_sweep, run_sweep
from posenc.running.sweep_jobs import applicable, asked_of, each_once
from posenc.running.sweep_jobs import stands as stands_now
from posenc.running.told import RETRY, setting
from posenc.running.validated import validated
from posenc.training.distributed import alone, current, run_distributed


def run_command(command: str, arguments: list[str], *, dry_run: bool = False, retry: bool = False) -> int:
    """`posenc train ...` or `posenc eval ...` from arguments to exit code. Raises UserError, RunError.

    A dry run of a training only says what it would take, and writes nothing; with `retry` a run that
    diverged is trained again. Under torchrun each process comes here with the same arguments.
    """
    with setting(RETRY, "1") if retry else nullcontext():
        return run_distributed(lambda: _run_command(command, arguments, dry_run))


def _run_command(command: str, arguments: list[str], dry_run: bool) -> int:
    group = current()
    refuse_unknown_flags(command, arguments)
    line = parse(arguments)
    if (line.asks_hydra or dry_run) and not group.is_first:
        return 0
    if line.asks_hydra:
        if line.prints_config:  # wrong input is told in our words there too
            compose_jobs(command, line)
        from posenc.config.hydra_answers import print_answer

        flags = [word for word in arguments if word not in line.overrides]
        print_answer(command, [*flags, *line.overrides])  # Hydra's parser wants them before or after
        return 0
    if dry_run:
        from posenc.cli.dry_run import print_dry_run

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
        from posenc.running.one_job import run_composed

        return run_composed(command, line, composed.config)
    if command == "train":
        composed = each_once(composed)
    places = [validated(command, job.settings).directory for job in composed.jobs]
    with named_sweep(composed.jobs):
        asked = asked_of(command, composed.jobs)
        stands = functools.partial(stands_now, command, composed.jobs)
        if composed.launcher is None:
            return run_sweep(command, line, composed, places, stands, asked)
        from posenc.running.launchers import run_launched

        return run_launched(command, line, composed, places, stands, asked)
