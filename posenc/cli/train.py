"""Run `posenc train` and `posenc eval`: print help, a configuration or a dry run, or run the jobs."""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from posenc.cli.help import asks_for_help, help_text
from posenc.core.console import terminal_width, write
from posenc.core.errors import UserError
from posenc.core.garbage import without_garbage_collector
from posenc.core.machine import load_meter
from posenc.core.progress import end_starting, starting
from posenc.core.torchrun import is_another_process
from posenc.running.invocation import Invocation

if TYPE_CHECKING:
    from posenc.config.compose import Jobs
    from posenc.config.overrides import CommandLine
    from posenc.running.sweep.run import Launch

WIDEST_HELP = 100  # columns


def run_train_or_eval(
    command: str,
    arguments: list[str],
    command_flags: Collection[str],
    invocation: Invocation,
    *,
    dry_run: bool = False,
) -> int:
    """Run `posenc train ...` or `posenc eval ...`; return the exit code. Raises UserError, RunError.

    Under torchrun each process calls this with the same arguments.
    """
    # Help needs no settings that are right: who asks for it may have typed some that are wrong.
    if asks_for_help(arguments):
        write(help_text(command, arguments, min(WIDEST_HELP, terminal_width())), sys.stdout)
        return 0
    load_meter()  # starts the meter: the load of the machine is measured from here to the first step
    start_line: AbstractContextManager[object] = nullcontext() if is_another_process() else starting()
    with start_line:
        return _run(command, arguments, command_flags, invocation, dry_run=dry_run)


def _run(
    command: str,
    arguments: list[str],
    command_flags: Collection[str],
    invocation: Invocation,
    *,
    dry_run: bool,
) -> int:
    """Parse the command line, and do what it asks for; return the exit code."""
    # Most of what the collector costs at the start it costs while torch is imported.
    with without_garbage_collector():
        from posenc.config.compose import compose_jobs
        from posenc.config.overrides import parse
        from posenc.training.distributed import run_distributed

    line = parse(arguments, command, command_flags)
    # The folder stays as it was typed: status.json keeps it for the command that continues the run.
    invocation = replace(invocation, config_dir=line.config_dir)
    if is_another_process() and (line.asks_hydra or dry_run or command == "eval"):
        return 0  # the first process answers, or measures
    if line.asks_hydra:
        return _answer(command, line)
    if dry_run:
        with without_garbage_collector():
            return _print_dry_run(command, line, retry=invocation.retry)
    if command == "eval":
        return run_jobs(command, line, compose_jobs(command, line), invocation)
    # Each process composes for itself. `run_job` then compares what they are about to do.
    return run_distributed(lambda: run_jobs(command, line, compose_jobs(command, line), invocation))


def _print_dry_run(command: str, line: CommandLine, *, retry: bool) -> int:
    """Print what the jobs of a line would take; return the exit code."""
    from posenc.config.compose import compose_jobs

    if command == "eval":
        from posenc.cli.dry_run_eval import print_eval_dry_run

        return print_eval_dry_run(compose_jobs(command, line))
    from posenc.cli.dry_run import print_dry_run

    return print_dry_run(compose_jobs(command, line), line, retry=retry)


def _answer(command: str, line: CommandLine) -> int:
    """Print what Hydra's own flags ask for."""
    from posenc.config.compose import compose_jobs, overrides_for_hydra
    from posenc.config.hydra_adapter import print_answer

    # Wrong input is refused in posenc's words. Hydra would print `seed=abc`, and end with 1 where it cannot.
    compose_jobs(command, line)
    end_starting()
    # Hydra's parser wants all overrides before the flags, or behind them
    print_answer(command, [*line.flags, *overrides_for_hydra(command, line)])
    return 0


def run_jobs(command: str, line: CommandLine, composed: Jobs, invocation: Invocation) -> int:
    """Validate all jobs, then run them; return the exit code. Raises UserError, RunError."""
    from hydra.core.utils import configure_log

    from posenc.running.jobs import check_jobs, run_job
    from posenc.running.sweep import run_sweep, sweep_name
    from posenc.training.distributed import current

    # Each process would start the whole sweep.
    if composed.is_sweep and current().size > 1:
        problem = "torchrun makes several processes of one run, not of a sweep"
        raise UserError("-m", None, problem, hint="one torchrun for each run; or -m without torchrun")
    # Under torchrun the first process fills the caches, and the others find them filled.
    checked = current().in_turn(lambda: check_jobs(composed))
    if composed.config is not None:
        # `hydra.main` would do it. A sweep has no such log: each of its
        # jobs is a process that configures its own.
        configure_log(composed.config.hydra.job_logging, composed.config.hydra.verbose)
        return run_job(checked[0].job, checked[0].composed.overrides, invocation)
    # Trackers group the runs of a sweep by this name.
    invocation = replace(invocation, sweep=sweep_name(checked))
    end_starting()
    return run_sweep(command, line, checked, invocation, _launch(command, line, composed, invocation))


def _launch(command: str, line: CommandLine, composed: Jobs, invocation: Invocation) -> Launch | None:
    """Return what runs the tasks of a sweep elsewhere; None: they run on this machine."""
    if composed.launcher is None:
        return None
    if composed.ray is not None:
        from posenc.running.ray_cluster import launch

        sweep = composed.jobs[0].settings.sweep  # the jobs of a sweep share it
        assert sweep is not None
        return partial(launch.launch, composed.ray, sweep, invocation)
    from posenc.running import slurm

    return partial(slurm.launch, command, line, composed.launcher, invocation)
