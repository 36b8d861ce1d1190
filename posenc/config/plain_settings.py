"""A composed configuration as plain data: references resolved, nothing unknown, nothing missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast, get_args, get_type_hints

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import setup_globals
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from posenc.config.hydra_errors import unknown_key
from posenc.config.schema import EvalConfig, TrainConfig
from posenc.core.errors import UserError, first_line

SCHEMAS = {"train": TrainConfig, "eval": EvalConfig}


def plain_settings(command: str, config: DictConfig) -> dict[str, Any]:
    """The configuration as plain data without Hydra's own part, to which `${hydra:...}` may refer.

    Unknown keys (`+foo=1`) and missing ones (`~seed`) are refused.
    """
    kept = OmegaConf.masked_copy(config, [str(k) for k in config if k != "hydra"])
    try:
        with _referred_to(config):
            settings = OmegaConf.to_container(kept, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", None) or "override")
        if isinstance(error, MissingMandatoryValue):
            raise UserError(key, None, "is needed and has no default", hint=f"add {key}=...") from error
        raise UserError(key, None, first_line(error)) from error
    assert isinstance(settings, dict)
    _refuse_unknown(settings, SCHEMAS[command], "")
    return {str(key): value for key, value in settings.items()}


@contextmanager
def _referred_to(config: DictConfig) -> Iterator[None]:
    """Hydra's part of this configuration is what `${hydra:...}` means; in a job of Hydra's it is already."""
    if "hydra" not in config:
        yield
        return
    holder = HydraConfig.instance()
    before = holder.cfg
    holder.set_config(config)
    OmegaConf.register_new_resolver("hydra", _known_to_hydra, replace=True)
    try:
        yield
    finally:
        holder.cfg = before
        setup_globals()  # Hydra's own resolver, which makes null of what is not known


def _known_to_hydra(path: str) -> Any:
    """What is the same in the job: a number of it, or its folder, would be another there."""
    value = OmegaConf.select(cast(DictConfig, HydraConfig.get()), path)
    if value is None:
        raise ValueError(f"hydra.{path} is not known before the job runs")
    return value


def _refuse_unknown(settings: dict[Any, Any], schema: Any, prefix: str) -> None:
    fields, hints = {f.name: f for f in dataclasses.fields(schema)}, get_type_hints(schema)
    for name in fields:
        if name not in settings:
            raise UserError(f"{prefix}{name}", None, "is needed and cannot be taken away")
    for key, value in settings.items():
        if key not in fields:
            raise unknown_key(f"{prefix}{key}", None, [f"{prefix}{name}" for name in fields])
        if value is None and hints[key] is not Any and type(None) not in get_args(hints[key]):
            raise UserError(f"{prefix}{key}", None, "needs a value, and what it refers to is null")
        factory = fields[key].default_factory
        if dataclasses.is_dataclass(factory) and isinstance(value, dict):
            _refuse_unknown(value, factory, f"{prefix}{key}.")
