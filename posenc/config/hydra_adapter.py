"""What Hydra is told (the typed schema of every setting), and every use of its private interfaces.

The schema holds types; every value has its home in `conf/`. `encoding`, `attention`, `positions`, `extend`,
`data`, `tokenizer` and `tracking` are plain mappings here: their keys belong to the function that takes them,
and `posenc.core.signature` checks them against it.
"""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import hydra
from hydra._internal.callbacks import Callbacks
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import HydraContext, RunMode
from omegaconf import MISSING, DictConfig

from posenc.core.paths import conf_dir, conf_dirs

# Compared with the composed configuration, never called: posenc runs these sweeps itself.
BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


@dataclass
class ModelSettings:
    """Sizes of the decoder."""

    name: str = MISSING
    d_model: int = MISSING
    n_layers: int = MISSING
    n_heads: int = MISSING
    mlp_ratio: int = MISSING
    short_conv: int | None = None  # tokens that a causal convolution before each attention sees


@dataclass
class OptimSettings:
    """The optimizer and the shape of its schedule."""

    name: str = MISSING
    beta1: float = MISSING
    beta2: float = MISSING
    eps: float = MISSING
    weight_decay: float = MISSING
    grad_clip: float = MISSING
    warmup_fraction: float = MISSING
    final_lr_fraction: float = MISSING


@dataclass
class TrainSettings:
    """Budget and pace. `checks` reads what may be written otherwise: tokens as 6e6, lr as `tuned`."""

    tokens: Any = MISSING
    batch_tokens: Any = MISSING
    lr: Any = MISSING
    precision: str = MISSING
    compile: str = MISSING
    checkpoint_seconds: float = MISSING
    log_every: int = MISSING
    init: str | None = MISSING
    length_schedule: list[Any] | None = MISSING  # of [share, length]


@dataclass
class RecallSettings:
    """The grid of the protocol `recall`."""

    distances: list[Any] | None = MISSING
    pairs: list[Any] | None = MISSING
    windows: Any = MISSING


@dataclass
class EvalSettings:
    """What is measured. In `posenc eval`, null means as trained."""

    lengths: list[Any] | None = MISSING
    base_length: Any = MISSING
    key_tokens: str | None = MISSING
    protocols: list[str] | None = MISSING
    split: str | None = MISSING
    target_fraction: float | None = MISSING
    stride: Any = MISSING
    recall: RecallSettings = field(default_factory=RecallSettings)
    max_targets: Any = MISSING
    batch_tokens: Any = MISSING
    precision: str | None = MISSING


@dataclass
class SweepSettings:
    """How a sweep goes on, and what else belongs to it; not part of the settings of its jobs."""

    fail_fast: bool = MISSING
    jobs: int | None = MISSING
    slots: int = MISSING
    also: list[str] = field(default_factory=list)


@dataclass
class TrainConfig:
    """`posenc train`."""

    encoding: dict[str, Any] = field(default_factory=dict)
    attention: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, Any] = field(default_factory=dict)
    extend: dict[str, Any] = field(default_factory=dict)
    model: ModelSettings = field(default_factory=ModelSettings)
    data: dict[str, Any] = field(default_factory=dict)
    tokenizer: dict[str, Any] = field(default_factory=dict)
    optim: OptimSettings = field(default_factory=OptimSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    tracking: dict[str, Any] = field(default_factory=dict)
    sweep: SweepSettings = field(default_factory=SweepSettings)
    context_length: int = MISSING
    seed: int = MISSING
    device: str = MISSING
    experiment_name: str = MISSING
    name: str | None = MISSING
    runs_dir: str = MISSING
    plugins: list[str] = field(default_factory=list)


@dataclass
class EvalConfig:
    """`posenc eval`."""

    run: str | None = MISSING
    subject: dict[str, Any] | None = None
    context_length: Any = MISSING
    extend: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] | None = None
    eval: EvalSettings = field(default_factory=EvalSettings)
    tracking: dict[str, Any] = field(default_factory=dict)
    sweep: SweepSettings = field(default_factory=SweepSettings)
    device: str = MISSING
    plugins: list[str] = field(default_factory=list)


class InstalledConfigs(SearchPathPlugin):
    """Add the YAML files of installed packages (`posenc.core.paths.CONF_ENTRY_POINTS`) after posenc's own."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in conf_dirs()[1:]:
            search_path.append("posenc-installed", f"file://{folder}")


def register_schemas() -> None:
    """Make the schemas and the installed packages' YAML known to Hydra; safe to call again."""
    Plugins.instance().register(InstalledConfigs)
    store = ConfigStore.instance()
    store.store(name="train_schema", node=TrainConfig)
    store.store(name="eval_schema", node=EvalConfig)


# --- private interfaces


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
    register_schemas()

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=command)
    def answer(config: DictConfig) -> None:
        raise AssertionError("the arguments ask for a job")

    sys.argv = [f"posenc {command}", *arguments]
    logging.raiseExceptions = False  # Hydra logs its answers, into `head` too
    answer()


def launcher_of(
    command: str, overrides: list[str], task: Callable[[DictConfig], int]
) -> tuple[Any, DictConfig]:
    """Return the plug-in's launcher that these overrides choose, and its configuration.

    Needs an initialized Hydra.
    """
    own = GlobalHydra.instance().hydra
    assert own is not None
    config = own.compose_config(command, overrides, RunMode.MULTIRUN, with_log_configuration=True)
    context = HydraContext(GlobalHydra.instance().config_loader(), Callbacks(config))
    return Plugins.instance().instantiate_launcher(context, task, config), config
