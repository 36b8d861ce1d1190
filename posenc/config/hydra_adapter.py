"""Every use of Hydra's private interfaces: its argument parser, its grids, and how it runs one job."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, NoReturn, cast

import hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, configure_log, run_job
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from posenc.config.schema import register_schemas
from posenc.core.errors import UserError
from posenc.core.paths import conf_dir

# Compared with the composed configuration, never called: posenc runs these sweeps itself.
BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def argument_parser() -> ArgumentParser:
    """Return Hydra's parser; what it cannot parse raises UserError."""
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    return parser


def _refuse(message: str) -> NoReturn:
    raise UserError("arguments", None, message, hint="settings are written KEY=VALUE: encoding=rope, seed=1")


def long_flags() -> list[str]:
    """Return Hydra's own flags."""
    return [flag for flag in get_args_parser()._option_string_actions if flag.startswith("--")]


def override_parser() -> OverridesParser:
    """Return the parser of overrides that knows the choices of groups; needs an initialized Hydra."""
    return OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())


def combinations(overrides: list[Override]) -> list[list[str]]:
    """Return the overrides of every job of a grid, in Hydra's order."""
    batches = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    return [list(job) for batch in batches for job in batch]


def print_answer(command: str, arguments: list[str]) -> None:
    """Print what `hydra.main` answers to `--cfg`, `--info` and the like. No job runs."""
    register_schemas()

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=command)
    def answer(config: DictConfig) -> None:
        raise AssertionError("the arguments ask for a job")

    sys.argv = [f"posenc {command}", *arguments]
    logging.raiseExceptions = False  # Hydra logs its answers, into `head` too
    answer()


def hydra_context(config: DictConfig) -> HydraContext:
    """Return the context in which Hydra runs jobs of this configuration; needs an initialized Hydra."""
    return HydraContext(GlobalHydra.instance().config_loader(), Callbacks(config))


def run_as_hydra(command: str, config: DictConfig, task: Callable[[DictConfig], int]) -> JobReturn:
    """Run one composed job as `hydra.main` does: with its logging, callbacks and environment.

    `hydra.main` would compose the same configuration twice more (0.2 s each).
    """
    context = hydra_context(config)
    configure_log(config.hydra.hydra_logging, config.hydra.verbose)
    context.callbacks.on_run_start(config=config, config_name=command)
    done = run_job(task, config, "hydra.run.dir", None, context)
    context.callbacks.on_run_end(config=config, config_name=command, job_return=done)
    return done


def resolve_hydra(config: DictConfig) -> None:
    """Let `${hydra:...}` read Hydra's part of `config`; within a job of Hydra's it does already."""
    if "hydra" in config:
        HydraConfig.instance().set_config(config)
        OmegaConf.register_new_resolver("hydra", _known_value, replace=True)


def _known_value(path: str) -> Any:
    """Return what is the same in the job; its number or its folder would be another one there."""
    value = OmegaConf.select(cast(DictConfig, HydraConfig.get()), path)
    if value is None:  # Hydra's own resolver returns null
        raise ValueError(f"hydra.{path} is not known before the job runs")
    return value
