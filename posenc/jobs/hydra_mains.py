"""Hydra's entry points of `posenc train` and `posenc eval`, at module level so that launchers can take them.

A sweep with the launchers basic and joblib does not come here as a whole: `posenc.jobs.sweep` gives each of
its jobs a process. Other launchers (submitit, Ray) call these functions in processes of their own.
A single job is run by `run_composed`, on the configuration that was checked.
"""

from __future__ import annotations

from functools import partial

import hydra
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from hydra.core.utils import run_job as run_hydras_job
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig

from posenc.errors import UserError, first_line
from posenc.jobs.command_line import CommandLine
from posenc.jobs.compose import initialized, plain_settings
from posenc.jobs.launch import run_job
from posenc.paths import conf_dir
from posenc.settings import register_schemas

register_schemas()
exit_codes: list[int] = []  # of the jobs that ran in this process, in order


def _job(command: str, config: DictConfig) -> None:
    sweep = HydraConfig.get().mode == RunMode.MULTIRUN
    exit_codes.append(run_job(command, plain_settings(command, config), in_sweep=sweep))


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="train")
def train(config: DictConfig) -> None:
    """One training job."""
    _job("train", config)


@hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="eval")
def evaluate(config: DictConfig) -> None:
    """One evaluation job."""
    _job("eval", config)


MAINS = {"train": train, "eval": evaluate}


def run_composed(command: str, line: CommandLine, config: DictConfig) -> int:
    """The one job of a command line as `hydra.main` runs it: with its logging, callbacks and environment.

    Not by `hydra.main`, which composes the same configuration twice more (0.2 s each). Raises UserError for
    what Hydra cannot do.
    """
    with initialized(line.config_dir):
        try:
            configure_log(config.hydra.hydra_logging, config.hydra.verbose)
            callbacks = Callbacks(config)
            callbacks.on_run_start(config=config, config_name=command)
            context = HydraContext(GlobalHydra.instance().config_loader(), callbacks)
            done = run_hydras_job(partial(_job, command), config, "hydra.run.dir", None, context)
        except (HydraException, OSError, ValueError) as error:  # the job's own are in `done`
            raise UserError("hydra", None, first_line(error), hint="see --cfg hydra") from error
        callbacks.on_run_end(config=config, config_name=command, job_return=done)
        _ = done.return_value  # raises what the job raised
    return exit_codes[-1]
