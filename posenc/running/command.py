"""Run the composed jobs of a command line: validate all of them first, then run, then show the table."""

from __future__ import annotations

import functools

from posenc.config.compose import Jobs
from posenc.config.overrides import CommandLine
from posenc.core.errors import UserError
from posenc.running.sweep import fails_fast, named_sweep, run_sweep
from posenc.running.sweep_jobs import applicable, asked_of, each_once
from posenc.running.sweep_jobs import stands as stands_now
from posenc.running.validated import validated
from posenc.training.distributed import current


def run_jobs(command: str, line: CommandLine, composed: Jobs) -> int:
    """Validate all jobs of `posenc train` or `posenc eval`, then run them. Raises UserError, RunError.

    Under torchrun each process comes here with the same jobs.
    """
    group = current()
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
