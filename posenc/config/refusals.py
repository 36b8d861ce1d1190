"""What Hydra could not compose, said in the user's words: the override, what is allowed, the nearest key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from hydra import compose
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from posenc.config.overrides import key_of
from posenc.config.parsing import is_sweep, unreadable
from posenc.config.yaml_files import groups
from posenc.core.errors import UserError, first_line, nearest
from posenc.core.paths import choice_files
from posenc.settings.base import keys_of_users
from posenc.settings.tree import RunSettings

REFUSALS = (HydraException, OmegaConfBaseException, yaml.YAMLError, AssertionError, ValueError, OSError)
SWEEPER = "hydra/sweeper"
LAUNCHER = "hydra/launcher"
MAKES_JOBS = "lists a,b, glob() and range() make the jobs of a sweep; a W&B sweep searches (docs/recipes.md)"


def refusal(command: str, overrides: list[str], error: Exception) -> UserError:
    """Return what to say of the override, or of the YAML file, that Hydra could not compose."""
    if isinstance(error, OverrideParseException):
        return unreadable(error.override)
    if isinstance(error, MissingConfigException):
        return _no_such_choice(error)
    if isinstance(error, yaml.YAMLError):
        return _no_yaml(error)
    in_file = re.match(r"In '([^']+)': \w+ raised while composing config:\n(.+)", str(error))
    if in_file:
        return UserError(f"{in_file[1]}.yaml", None, in_file[2])
    return _wrong_override(command, overrides, error)


def _wrong_override(command: str, overrides: list[str], error: Exception) -> UserError:
    """Return what is wrong with the first override that does not fit the settings that the choices make."""
    # Hydra stops at its first error and names it in its own terms, so the settings are composed again without
    # the overrides that may be wrong, and each override is held against them.
    choosing = {*groups(command), LAUNCHER, "hydra.searchpath"}
    choices = [text for text in overrides if text.partition("=")[0] in choosing and not is_sweep(text)]
    config = compose(command, choices, return_hydra_config=True)
    known = dotted_keys(OmegaConf.to_container(config))  # type: ignore[arg-type]
    last_values = {key_of(text): text.partition("=")[2] for text in overrides}  # the last one counts
    for key, value in last_values.items():
        if key not in known and key not in choosing:
            return unknown_setting(command, key, value or None, known)
        if "Ambiguous value" in str(error) and is_sweep(f"{key}={value}"):
            is_list = OmegaConf.is_list(OmegaConf.select(config, key))
            hint = f"a list is written so: '{key}=[{value}]'" if is_list else "for a sweep add -m"
            return UserError(key, value, "several values", hint=hint)
    cause = error.__cause__ or error
    return UserError(getattr(cause, "full_key", None) or "override", None, first_line(cause))


def _no_yaml(error: yaml.YAMLError) -> UserError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", first_line(error))
    if mark is None:
        return UserError("--config-dir", None, f"cannot be read as YAML: {problem}")
    return UserError(str(mark.name), None, f"cannot be read as YAML in line {mark.line + 1}: {problem}")


def _no_such_choice(error: MissingConfigException) -> UserError:
    group, _, choice = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return UserError(choice, None, first_line(error))
    hint = f"one of your own needs --config-dir DIR with its YAML in DIR/{group}/"
    if group == SWEEPER:
        hint = MAKES_JOBS
    elif group == LAUNCHER:
        hint = "without it jobs run at once here, sweep.jobs=N says how many\n"
        hint += "slurm needs a plug-in: pip install 'posenc[slurm]'"
    return UserError(group, choice, f"there is no such {group}", allowed=list(error.options or []), hint=hint)


def unknown_setting(command: str, key: str, value: object, known: list[str]) -> UserError:
    """Return the error for a setting that does not exist, with the nearest one, or with whose it is."""
    group, _, name = key.partition(".")
    if command == "eval" and group in keys_of_users(RunSettings) and group not in known:
        hint = "a run is measured as it was trained; what eval takes: posenc eval --help"
        return UserError(key, value, "is the run's own", hint=hint)
    same_part = [other for other in known if other.startswith("hydra") == key.startswith("hydra")]
    owners = [choice for choice, keys in _keys_of_choices(group) if name and name in keys]
    if owners:
        hint = f"{key} is a setting of {group}={', '.join(owners)}"
    else:
        close = _nearest_settings(key, same_part)
        hint = f"did you mean: {close}" if close else ""
    siblings = ", ".join(sorted(_siblings(key, known)))
    return UserError(key, value, "there is no such setting", allowed=siblings, hint=hint)


def _nearest_settings(key: str, known: list[str]) -> str | None:
    """Return the settings whose last part is most like a bare key; else the setting most like the key."""
    if "." not in key:
        last_parts = [other.rpartition(".")[2] for other in known]
        close = nearest(key, last_parts)
        alike = [other for other in known if other.rpartition(".")[2] == close]
        if alike:
            return " or ".join(alike)
    return nearest(key, [other for other in known if not key.startswith(f"{other}.")])


def _siblings(key: str, known: list[str]) -> list[str]:
    """Return the settings in the group of a key; of the nearest group above it that exists."""
    parent = key.rpartition(".")[0]
    siblings = [other for other in known if other.rpartition(".")[0] == parent]
    while not siblings:
        parent = parent.rpartition(".")[0]
        siblings = [other for other in known if other.rpartition(".")[0] == parent]
    return siblings


def _keys_of_choices(group: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the choices of a group, each with what its YAML holds."""
    for choice, path in choice_files(group).items():
        yield choice, yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def needed(key: str) -> UserError:
    """Return the error for a setting without a value."""
    return UserError(key, None, "is needed and has no default", hint=f"add {key}=...")


def dotted_keys(config: Mapping[Any, Any], prefix: str = "") -> list[str]:
    """Return every key of nested settings, groups too: `train`, `train.lr`."""
    keys: list[str] = []
    for key, value in config.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, dict):
            keys += dotted_keys(value, f"{prefix}{key}.")
    return keys
