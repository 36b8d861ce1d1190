"""Turn Hydra's errors into UserErrors: with the override, what is allowed, and the nearest key."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import yaml
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigTypeError, OmegaConfBaseException

from posenc.config.hints import hint_at_choice
from posenc.config.hydra_adapter import SEARCH_PATH, compose
from posenc.config.keys import is_hydras, key_of
from posenc.config.overrides import as_typed
from posenc.config.parsing import has_several_values, unreadable_override
from posenc.config.yaml_files import default_choices
from posenc.core.errors import SUGGESTS, UserError, first_line, nearest, suggestion
from posenc.core.foreign_names import instead_of_setting, setting_called
from posenc.core.paths import choice_files, mapping_in
from posenc.settings.base import keys_of_users
from posenc.settings.errors import TYPE_WORDS, mapping_with
from posenc.settings.launchers import LAUNCHER
from posenc.settings.tree import RunSettings

# For some wrong input Hydra raises a bare AssertionError or ValueError.
REFUSALS = (HydraException, OmegaConfBaseException, yaml.YAMLError, AssertionError, ValueError, OSError)
SWEEPER = "hydra/sweeper"
MAKES_JOBS = "lists a,b, glob() and range() make the jobs of a sweep; a W&B sweep searches (docs/recipes.md)"


def refusal(command: str, overrides: list[str], error: Exception) -> UserError:
    """Return the error for the override, or for the YAML file, that Hydra could not compose."""
    if isinstance(error, OverrideParseException):
        return unreadable_override(error.override)
    if isinstance(error, MissingConfigException):
        return _no_such_choice(command, error)
    if isinstance(error, yaml.YAMLError):
        return _unreadable_yaml(error)
    # Hydra has no attribute for the file, and names it in its message alone.
    in_file = re.match(r"In '([^']+)': (?:\w+ raised while composing config:\n)?(.+)", str(error))
    if in_file:
        return UserError(f"{in_file[1]}.yaml", None, in_file[2])
    return _wrong_override(command, overrides, error)


def _wrong_override(command: str, overrides: list[str], error: Exception) -> UserError:
    """Return the error for the first override that does not fit the settings that the choices make."""
    # Hydra stops at its first error and names it in its own terms, so the settings are composed again without
    # the overrides that may be wrong, and each override is compared with them.
    choosing = {*default_choices(command), LAUNCHER, SEARCH_PATH}
    choices = []
    for override in overrides:
        if override.partition("=")[0] in choosing and not has_several_values(override):
            choices.append(override)
    try:
        config = compose(command, choices)
    except REFUSALS:  # they do not fit together, as with a wrong defaults list in a YAML of the user's
        return UserError("--config-dir", None, first_line(error))
    # A group without a choice, as `experiment` by default, has no key in what was composed.
    composed_keys = dotted_keys(OmegaConf.to_container(config))  # type: ignore[arg-type]
    known_keys = list(dict.fromkeys([*default_choices(command), *composed_keys]))
    last_values = {key_of(text): text.partition("=")[2] for text in overrides}  # the last one counts
    for key, value in last_values.items():
        if key not in known_keys and key not in choosing:
            return unknown_setting(command, key, value or None, known_keys)
        if _needs_multirun(error) and has_several_values(f"{key}={value}"):
            line = shlex.join(as_typed(text) for text in overrides if not is_hydras(text))
            hint = f"for a sweep: posenc {command} -m {line}"
            if OmegaConf.is_list(OmegaConf.select(config, key)):
                hint = f"a list is written so: '{key}=[{value}]'"
            return UserError(key, value, "several values", hint=hint)
    # Hydra wraps OmegaConf's error, which has the key.
    cause = error.__cause__ or error
    key = getattr(cause, "full_key", None) or "override"
    if key in last_values and isinstance(cause, ConfigTypeError):
        return UserError(key, last_values[key], "wrong type", allowed=_kind_at(config, key))
    problem = first_line(cause)
    return _wrong_deletion(overrides, problem) or UserError(key, None, problem)


def _wrong_deletion(overrides: list[str], problem: str) -> UserError | None:
    """Return the error for an override such as `~run`, if it is the one that Hydra names."""
    for override in overrides:
        # Could not delete from config. 'run' does not exist.
        if override.startswith("~") and f"'{key_of(override)}'" in problem:
            hint = f"give it a value: {key_of(override)}=..."
            return UserError(override, None, "cannot be left out", hint=hint)
    return None


def _kind_at(config: DictConfig, key: str) -> str:
    """Return what kind of value a setting has: a mapping with certain keys, or a list."""
    value = OmegaConf.select(config, key)
    if OmegaConf.is_dict(value):
        return mapping_with([str(name) for name in value])
    return TYPE_WORDS[list] if OmegaConf.is_list(value) else ""


def _unreadable_yaml(error: yaml.YAMLError) -> UserError:
    """Return the error for a file that is no YAML."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", first_line(error))
    if mark is None:
        return UserError("--config-dir", None, f"cannot be read as YAML: {problem}")
    return UserError(str(mark.name), None, f"cannot be read as YAML in line {mark.line + 1}: {problem}")


def _no_such_choice(command: str, error: MissingConfigException) -> UserError:
    """Return the error for a choice that a group does not have."""
    missing = error.missing_cfg_file or ""
    group, _, choice = missing.rpartition("/")
    for known_group in (*default_choices(command), SWEEPER, LAUNCHER):
        if missing.startswith(f"{known_group}/"):  # the choice may be a path, which has slashes of its own
            group = known_group
            choice = missing.removeprefix(f"{known_group}/")
    if not group:
        return UserError(choice, None, first_line(error))
    hint = hint_at_choice(group, choice)
    if group == SWEEPER:
        hint = MAKES_JOBS
    elif group == LAUNCHER:
        hint = (
            "without it jobs run at once here, sweep.jobs=N says how many\n"
            "slurm needs a plug-in: pip install 'posenc[slurm]'; ray: pip install 'posenc[ray]'"
        )
    options = list(error.options or [])
    # one answer is enough: of a list the error would name the nearest choice, too
    allowed = ", ".join(options) if hint.startswith(SUGGESTS) else options
    return UserError(group, choice, f"there is no such {group}", allowed=allowed, hint=hint)


def _needs_multirun(error: Exception) -> bool:
    """Tell whether Hydra refused several values of a single job; of `glob()` it says so in other words."""
    return any(text in str(error) for text in ("Ambiguous value", "requires --multirun"))


def unknown_setting(command: str, key: str, value: object, known: list[str]) -> UserError:
    """Return the error for a setting that does not exist, with the nearest one or with its owner."""
    group, _, name = key.partition(".")
    if command == "eval" and group in keys_of_users(RunSettings) and group not in known:
        hint = "a run is measured as it was trained; what eval takes: posenc eval --help all"
        return UserError(key, value, "is the run's own", hint=hint)
    is_of_hydra = key.startswith("hydra")
    # Hydra's settings have common names such as `hydra.job.name`, which would be suggested for typos.
    candidates = [other for other in known if other != "hydra" and other.startswith("hydra") == is_of_hydra]
    # `encoding.base` is a setting of rope. With another encoding it is unknown, and the owner is the answer.
    owners = [choice for choice, keys in _keys_of_choices(group) if name and name in keys]
    if owners:
        hint = f"{key} is a setting of {group}={', '.join(owners)}"
    else:
        written = value if isinstance(value, str) else None
        close = _meant_setting(command, key, written, candidates)
        all_settings = f"posenc {command} --help all says what each setting means"
        hint = suggestion(close) if close else all_settings
    siblings = ", ".join(sorted(_siblings(key, candidates)))
    return UserError(key, value, "there is no such setting", allowed=siblings, hint=hint)


def _meant_setting(command: str, key: str, value: str | None, known: list[str]) -> str | None:
    """Return what a key means: a setting without its group, a setting of another tool, or a similar key."""
    parent, _, name = key.rpartition(".")
    same_name = [other for other in known if other.rpartition(".")[2] == name]
    if same_name:
        same_name.sort(key=lambda other: not other.startswith(f"{command}."))  # that of the command first
        return _listed(same_name, value)
    meant = setting_called(command, key)
    # of a command that does not take the setting, the name says nothing
    is_taken = meant is not None and meant.partition(".")[0] in known
    if is_taken and not key.startswith("hydra"):
        return instead_of_setting(command, key, value)
    return _listed(_similar_settings(parent, name, known), value)


def _listed(settings: list[str], value: str | None) -> str | None:
    """Return `train.lr=1e-3`, or several settings without the value; None without any."""
    if len(settings) == 1 and value is not None:
        return f"{settings[0]}={value}"
    return " or ".join(settings) or None


def _similar_settings(parent: str, name: str, known: list[str]) -> list[str]:
    """Return the settings with the most similar name in the same group; for a bare key in all groups."""
    # whole keys are not compared: a group's name in common would make `optim.epochs` like `optim.eps`
    candidates = [other for other in known if not parent or other.rpartition(".")[0] == parent]
    if not candidates:
        similar = nearest(f"{parent}.{name}", known)
        return [] if similar is None else [similar]
    close = nearest(name, [other.rpartition(".")[2] for other in candidates])
    return [other for other in candidates if other.rpartition(".")[2] == close]


def _siblings(key: str, known: list[str]) -> list[str]:
    """Return the settings in the group of a key, or in the nearest group above it that exists."""
    siblings: list[str] = []
    parent = key
    while not siblings:  # at the latest those of the whole tree
        parent = parent.rpartition(".")[0]
        siblings = [other for other in known if other.rpartition(".")[0] == parent]
    return siblings


def _keys_of_choices(group: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the choices of a group, each with the keys and values of its YAML.

    A file of an installed package that holds none is left out: these keys are for hints alone.
    """
    for choice, path in choice_files(group).items():
        with suppress(UserError):
            yield choice, mapping_in(path, group, choice)


def dotted_keys(config: Mapping[Any, Any], prefix: str = "") -> list[str]:
    """Return every key of nested settings, groups too: `train`, `train.lr`."""
    keys: list[str] = []
    for key, value in config.items():
        keys.append(f"{prefix}{key}")
        if isinstance(value, dict):
            keys += dotted_keys(value, f"{prefix}{key}.")
    return keys
