"""Hydra's entry points of `posenc train` and `posenc eval`, at module level so that launchers can take them.

With Hydra's basic launcher, each job of a sweep runs in a process of its own, so that its death is its own;
other launchers (joblib, submitit, Ray) give each job a process anyway.
"""

from __future__ import annotations

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from posenc.jobs.compose import plain_settings
from posenc.jobs.launch import in_own_process, run_job
from posenc.paths import conf_dir
from posenc.settings import register_schemas

BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"

register_schemas()
exit_codes: list[int] = []  # of the jobs this process ran or started, in order


def _job(command: str, config: DictConfig) -> None:
    around = HydraConfig.get()
    sweep = around.mode == RunMode.MULTIRUN
    if sweep and around.launcher._target_ == BASIC_LAUNCHER:
        number, overrides = int(around.job.num), list(around.overrides.task)
        exit_codes.append(in_own_process(command, overrides, number))
    else:
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
