"""The typed schema that Hydra validates against. It holds types; every value has its home in `conf/`.

`encoding`, `attention`, `positions`, `extend`, `data`, `tokenizer` and `tracking` are plain mappings here:
their keys belong to the function that takes them, and `posenc.core.signature` checks them against it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import MISSING

from posenc.core.paths import conf_dirs


@dataclass
class ModelSettings:
    """Sizes of the decoder."""

    name: str = MISSING
    d_model: int = MISSING
    n_layers: int = MISSING
    n_heads: int = MISSING
    mlp_ratio: int = MISSING


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
    """Budget and pace. `tokens` and `batch_tokens` may be written 6e6, so `checks.whole` reads them."""

    tokens: Any = MISSING
    batch_tokens: Any = MISSING
    lr: float = MISSING
    precision: str = MISSING
    compile: str = MISSING
    checkpoint_seconds: float = MISSING
    log_every: int = MISSING


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
    stack: int = 1
    also: list[str] = field(default_factory=list)


@dataclass
class TrainConfig:
    """`posenc train`."""

    encoding: dict[str, Any] = field(default_factory=dict)
    attention: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, Any] = field(default_factory=dict)
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

    run: str = MISSING
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
