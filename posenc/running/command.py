"""Run the composed jobs of `posenc train` or `posenc eval`: one here, or a sweep."""

from __future__ import annotations

from posenc.config.compose import Jobs, initialized
from posenc.config.overrides import CommandLine
from posenc.config.plain_settings import plain_settings
from posenc.core.errors import UserError, first_line
from posenc.running.jobs import applicable, each_once
from posenc.training.distributed import current


def run_jobs(command: str, line: CommandLine, composed: Jobs) -> int:
    """Validate all jobs, then run them; return the exit code. Raises UserError, RunError.

    Under torchrun each process comes here with the same job.
    """
    from posenc.running.sweep import fails_fast, named_sweep, run_sweep

    group = current()
    if composed.sweep and group.size > 1:
        hint = "one torchrun for each run; or -m without torchrun, several at once: hydra/launcher=joblib"
        raise UserError("-m", None, "torchrun makes several processes of one run, not of a sweep", hint=hint)
    if composed.sweep:
        fails_fast(composed)
    composed = group.in_turn(lambda: applicable(command, composed))
    if composed.config is not None:
        return _run_one(command, line, composed)
    if command == "train":
        composed = each_once(composed)
    with named_sweep(composed.jobs):
        if composed.launcher is None:
            return run_sweep(command, line, composed)
        from posenc.running.slurm import run_launched

        return run_launched(command, line, composed)


def _run_one(command: str, line: CommandLine, composed: Jobs) -> int:
    """Run the one job as `hydra.main` does. Raises UserError for what Hydra cannot do."""
    from hydra.errors import HydraException
    from omegaconf import DictConfig

    from posenc.running.run_job import run_job

    def task(settings: DictConfig) -> int:
        return run_job(command, plain_settings(command, settings), in_sweep=False)

    assert composed.config is not None
    with initialized(line.config_dir):
        try:
            done = _run_as_hydra(command, composed.config, task)
        except (HydraException, OSError, ValueError) as error:  # the job's own are in `done`
            raise UserError("hydra", None, first_line(error), hint="see --cfg hydra") from error
    code: int = done.return_value  # raises what the job raised
    return code


def _run_as_hydra(command, config, task):  # type: ignore[no-untyped-def]
    from hydra._internal.callbacks import Callbacks
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.utils import configure_log
    from hydra.core.utils import run_job as run_hydras_job
    from hydra.types import HydraContext

    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    callbacks = Callbacks(config)
    callbacks.on_run_start(config=config, config_name=command)
    context = HydraContext(GlobalHydra.instance().config_loader(), callbacks)
    done = run_hydras_job(task, config, "hydra.run.dir", None, context)
    callbacks.on_run_end(config=config, config_name=command, job_return=done)
    return done


def run_command(command: str, arguments: list[str], *, dry_run: bool = False, retry: bool = False) -> int:
    """Until the command line calls run_jobs itself."""
    from contextlib import nullcontext

    from posenc.running.env_vars import RETRY, setting
    from posenc.training.distributed import together

    with setting(RETRY, "1") if retry else nullcontext():
        return together(lambda: _run_command(command, arguments, dry_run))


def _run_command(command: str, arguments: list[str], dry_run: bool) -> int:
    from posenc.config.compose import compose_jobs
    from posenc.config.overrides import parse, refuse_unknown_flags
    from posenc.training.distributed import alone

    refuse_unknown_flags(command, arguments)
    line = parse(arguments)
    if (line.asks_hydra or dry_run) and not current().is_first:
        return 0
    if line.asks_hydra:
        if line.prints_config:
            compose_jobs(command, line)
        from posenc.config.hydra_answers import print_answer

        flags = [word for word in arguments if word not in line.overrides]
        print_answer(command, [*flags, *line.overrides])
        return 0
    composed = compose_jobs(command, line)
    if dry_run:
        from posenc.cli.dry_run import print_dry_run

        with alone():
            return print_dry_run(composed)
    return run_jobs(command, line, composed)
