"""Use Hydra's private interfaces, here and nowhere else."""

from __future__ import annotations

import copy
import functools
import logging
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, NoReturn

import hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
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
SEARCH_PATH = "hydra.searchpath"
MOST_CHOICES = 64  # compositions to remember, of about 1 MB each

# the path of a YAML file, when it was changed, and its size
YamlStamp = tuple[str, int, int]


def argument_parser(refuse: Callable[[str], NoReturn]) -> ArgumentParser:
    """Return Hydra's parser of arguments. It calls `refuse` with a message where arguments are wrong."""
    # Its private function, since `hydra.main` parses and runs in one.
    parser = get_args_parser()
    # Hydra's own action would print the version of Hydra and exit.
    parser._optionals.conflict_handler = "resolve"
    parser.add_argument("--version", action="store_true")
    # argparse would print its usage and exit by itself.
    parser.error = refuse  # type: ignore[method-assign, assignment]
    return parser


def override_parser() -> OverridesParser:
    """Return the parser of overrides that knows the choices of groups. Needs an initialized Hydra."""
    return OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())


def combinations(overrides: list[Override]) -> list[list[str]]:
    """Return the overrides of every job of a grid, in Hydra's order."""
    # without a size of batches Hydra makes a single batch
    (batch,) = BasicSweeper.split_arguments(overrides, max_batch_size=None)
    return [list(job_overrides) for job_overrides in batch]


def compose(command: str, overrides: list[str]) -> DictConfig:
    """Compose a configuration as `hydra.compose` does, with Hydra's own part. Needs an initialized Hydra.

    Nearly all of the 0.12 s that Hydra takes goes into the YAML files of the choices. Jobs of a sweep that
    differ in values alone share them, so they are read once for the same choices. Of Hydra's own part, the
    lists of overrides name the choices only.
    """
    parsed = OverridesParser.create().parse_overrides(overrides)
    choices: list[str] = []
    values: list[Override] = []
    for text, override in zip(overrides, parsed, strict=True):
        # other folders may add groups, and what several values mean is for Hydra to say
        if override.key_or_group == SEARCH_PATH or override.is_sweep_override():
            return hydra.compose(command, overrides, return_hydra_config=True)
        if _chooses_file(override):
            choices.append(text)
        else:
            values.append(override)
    # The configuration is copied, since the values of this job are written into it.
    config = copy.deepcopy(_compose_choices(command, tuple(choices), _yaml_stamps()))
    ConfigLoaderImpl._apply_overrides_to_config(values, config)
    config.hydra.runtime.cwd = os.getcwd()  # noqa: PTH109 (as Hydra sets it)
    return config


def _chooses_file(override: Override) -> bool:
    """Tell whether an override chooses a YAML file of a group, by Hydra's own rule."""
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    is_group = loader.repository.group_exists(override.key_or_group)
    return is_group and not isinstance(override.value(), dict)


@functools.lru_cache(maxsize=MOST_CHOICES)
def _compose_choices(command: str, choices: tuple[str, ...], stamps: tuple[YamlStamp, ...]) -> DictConfig:
    """Compose choices alone; never change the result. With other stamps they are read again."""
    return hydra.compose(command, list(choices), return_hydra_config=True)


def _yaml_stamps() -> tuple[YamlStamp, ...]:
    """Return what tells whether a YAML file of posenc has changed."""
    stamps: list[YamlStamp] = []
    for path in sorted(conf_dir().rglob("*.yaml")):
        status = path.stat()
        # A process of tests, or a notebook, lives on while somebody edits a file.
        stamps.append((str(path), status.st_mtime_ns, status.st_size))
    return tuple(stamps)


def print_answer(command: str, arguments: list[str]) -> None:
    """Print what `hydra.main` answers to `--cfg`, `--info` and the like. No job runs."""

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=command)
    def answer(config: DictConfig) -> None:
        raise AssertionError("the arguments ask for a job")

    # `hydra.main` reads the arguments of the process and takes no others.
    sys.argv = [f"posenc {command}", *arguments]
    # Hydra logs its answers; behind `| head` the pipe closes early, and logging would print tracebacks
    logging.raiseExceptions = False
    answer()


def launcher_and_config(
    command: str, overrides: list[str], task: Callable[[DictConfig], int]
) -> tuple[Any, DictConfig]:
    """Return the launcher that the overrides choose, and the composed configuration.

    Needs an initialized Hydra. The launcher calls `task` with the configuration of each job.
    """
    hydra_object = GlobalHydra.instance().hydra
    assert hydra_object is not None
    # `hydra.compose` would compose it for a single job, and would leave out Hydra's logging.
    config = hydra_object.compose_config(command, overrides, RunMode.MULTIRUN, with_log_configuration=True)
    context = HydraContext(GlobalHydra.instance().config_loader(), Callbacks(config))
    return Plugins.instance().instantiate_launcher(context, task, config), config
