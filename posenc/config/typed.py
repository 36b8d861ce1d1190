"""Turn a configuration that Hydra composed into the typed settings of a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from posenc.config.hints import hint_at_several
from posenc.config.keys import key_of
from posenc.config.refusals import dotted_keys, unknown_setting
from posenc.core.errors import UserError, first_line
from posenc.settings.base import is_filled_in
from posenc.settings.errors import dotted, missing_value, user_error
from posenc.settings.tree import EvalCommandSettings, RunSettings

SHARES = "data.split"
SETTINGS: dict[str, type[RunSettings] | type[EvalCommandSettings]] = {
    "train": RunSettings,
    "eval": EvalCommandSettings,
}


def typed_settings(
    command: str, config: DictConfig, overrides: Sequence[str]
) -> RunSettings | EvalCommandSettings:
    """Return the settings of a command, without Hydra's own part. `overrides` are those of the job.

    Raises UserError for keys that do not exist (`+foo=1`) or are missing (`~seed`), and for wrong values.
    """
    plain = _plain_data(config)
    model = SETTINGS[command]
    # Hydra refuses unknown keys, but `+key=value` gets past it: it adds the key
    forbidden = _first_filled_in_key(model, plain)
    if forbidden is not None:
        raise unknown_setting(command, forbidden, None, _keys_without(forbidden, plain))
    if command == "eval":
        # By the line, since typed shares may be equal to those of the YAML.
        plain["keeps_shares"] = any(_sets_shares(override) for override in overrides)
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        # A UserError names one key, so the first error is shown.
        first = error.errors(include_url=False)[0]
        if first["type"] == "extra_forbidden":
            key = dotted(list(first["loc"]))
            raise unknown_setting(command, key, None, _keys_without(key, plain)) from None
        refused = user_error(error, model)
        refused.hint = refused.hint or hint_at_several(refused.key, refused.value, refused.allowed)
        raise refused from None


def _sets_shares(override: str) -> bool:
    """Tell whether an override sets what share of a text goes to which split."""
    key = key_of(override)
    return key == SHARES or key.startswith(f"{SHARES}.")


def _plain_data(config: DictConfig) -> dict[str, Any]:
    """Return the configuration as plain data, every interpolation resolved. Raises UserError."""
    # An experiment's YAML without `@package _global_` puts its settings below a key of the group's name.
    if "experiment" in config:
        hint = (
            "begin it with the line\n# @package _global_      and choose others by a defaults list: "
            "- override /encoding: rope"
        )
        name = f"experiment/{config.hydra.runtime.choices.experiment}.yaml"
        raise UserError(name, None, "its settings stand for those of a group `experiment`", hint=hint)
    # Hydra's part has values that are missing until a job of its own runs.
    without_hydra = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    try:
        plain: Any = OmegaConf.to_container(without_hydra, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", None) or "override")
        if isinstance(error, MissingMandatoryValue):
            raise missing_value(key) from error
        raise UserError(key, None, first_line(error)) from error
    settings: dict[str, Any] = plain
    return settings


def _first_filled_in_key(model: type[BaseModel], plain: Mapping[str, Any], prefix: str = "") -> str | None:
    """Return the first key that only posenc may fill in, such as `train.began`."""
    for name, field in model.model_fields.items():
        if name not in plain:
            continue
        if is_filled_in(field.json_schema_extra):
            return f"{prefix}{name}"
        group = field.annotation
        value = plain[name]
        if isinstance(group, type) and issubclass(group, BaseModel) and isinstance(value, dict):
            key = _first_filled_in_key(group, value, f"{prefix}{name}.")
            if key is not None:
                return key
    return None


def _keys_without(wrong_key: str, plain: Mapping[str, Any]) -> list[str]:
    """Return the keys of the settings without the wrong one, which Hydra has put among them."""
    keys = dotted_keys(plain)
    return [key for key in keys if key != wrong_key and not key.startswith(f"{wrong_key}.")]
