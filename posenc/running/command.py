"""Run the composed jobs of `posenc train` or `posenc eval`: one here, or a sweep."""

from __future__ import annotations

from posenc.config.compose import Jobs, initialized, plain_settings
from posenc.config.hydra_adapter import run_as_hydra
from posenc.config.overrides import CommandLine
from posenc.core.errors import UserError, first_line
from posenc.running.jobs import applicable, each_once, run_job
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

    def task(settings: DictConfig) -> int:
        return run_job(command, plain_settings(command, settings), in_sweep=False)

    assert composed.config is not None
    with initialized(line.config_dir):
        try:
            done = run_as_hydra(command, composed.config, task)
        except (HydraException, OSError, ValueError) as error:  # the job's own are in `done`
            raise UserError("hydra", None, first_line(error), hint="see --cfg hydra") from error
    code: int = done.return_value  # raises what the job raised
    return code
