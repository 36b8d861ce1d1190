"""Hydra's entry points of `posenc train` and `posenc eval`, at module level so that launchers can take them.

A sweep with the launchers basic and joblib does not come here as a whole: `posenc.jobs.sweep` gives each of
its jobs a process. Other launchers (submitit, Ray) call these functions in processes of their own.
"""

from __future__ import annotations

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from posenc.jobs.compose import plain_settings
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
