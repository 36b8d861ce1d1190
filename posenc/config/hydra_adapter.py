"""Every use of Hydra's private interfaces."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, NoReturn

import hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig

from posenc.core.paths import conf_dir

# Compared with the composed configuration, never called: posenc runs these sweeps itself.
BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def argument_parser(refuse: Callable[[str], NoReturn]) -> ArgumentParser:
    """Return Hydra's parser; `refuse` is called with what is wrong."""
    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign, assignment]
    return parser


def override_parser() -> OverridesParser:
    """Return the parser of overrides that knows the choices of groups; needs an initialized Hydra."""
    return OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())


def combinations(overrides: list[Override]) -> list[list[str]]:
    """Return the overrides of every job of a grid, in Hydra's order."""
    batches = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    return [list(job) for batch in batches for job in batch]


def print_answer(command: str, arguments: list[str]) -> None:
    """Print what `hydra.main` answers to `--cfg`, `--info` and the like. No job runs."""

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=command)
    def answer(config: DictConfig) -> None:
        raise AssertionError("the arguments ask for a job")

    sys.argv = [f"posenc {command}", *arguments]
    logging.raiseExceptions = False  # Hydra logs its answers, into `head` too
    answer()


def launcher_of(
    command: str, overrides: list[str], task: Callable[[DictConfig], int]
) -> tuple[Any, DictConfig]:
    """Return the plug-in's launcher that these overrides choose, and its configuration; Hydra is set up."""
    own = GlobalHydra.instance().hydra
    assert own is not None
    config = own.compose_config(command, overrides, RunMode.MULTIRUN, with_log_configuration=True)
    context = HydraContext(GlobalHydra.instance().config_loader(), Callbacks(config))
    return Plugins.instance().instantiate_launcher(context, task, config), config
