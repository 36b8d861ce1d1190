"""Translate errors of Hydra and OmegaConf: name the key, the value, and the nearest valid choice."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import yaml
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from posenc.config.overrides import group_of, key_of
from posenc.core.errors import UserError, first_line, nearest
from posenc.core.paths import choice_files, conf_dir

# What to install for launchers (the preset `slurm` needs `submitit_slurm`), and to search without a sweeper.
LAUNCHERS = {
    "submitit_slurm": "'posenc[slurm]'",
    "submitit_local": "'posenc[slurm]'",
    "ray": "hydra-ray-launcher",
    "ray_aws": "hydra-ray-launcher",
    "rq": "hydra-rq-launcher",
}
SEARCHES = {"optuna": "optuna", "ax": "ax-platform", "nevergrad": "nevergrad"}
WANTED = {
    "Integer": "a whole number",
    "Float": "a number",
    "Boolean": "true or false",
    "not a ListConfig": "a list, written [a,b]",
}
Composed = Callable[[list[str]], DictConfig]  # overrides -> the configuration, to see which keys there are


def unreadable(override: str) -> UserError:
    """An override that is not KEY=VALUE."""
    if override in choice_files("encoding"):
        hint = f"did you mean: encoding={override}"
    else:
        hint = "no spaces around '='; quote what holds spaces or brackets:\n"
        hint += "'eval.lengths=[1x,2x]'"
    return UserError(override, None, "cannot be read as KEY=VALUE", hint=hint)


def no_such_choice(error: MissingConfigException) -> UserError:
    """A group that has no YAML of this name, or whose plug-in is missing."""
    group, _, choice = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return UserError(choice, None, first_line(error))
    if group == "hydra/launcher" and choice in LAUNCHERS:
        hint = f"pip install {LAUNCHERS[choice]}"
        return UserError(group, choice, "needs a plug-in of Hydra that is not installed", hint=hint)
    if group == "hydra/sweeper":
        return no_search(choice)
    hint = f"one of your own needs --config-dir DIR with its YAML in DIR/{group}/"
    return UserError(group, choice, f"there is no such {group}", allowed=list(error.options or []), hint=hint)


def no_search(sweeper: str) -> UserError:
    """A sweeper that searches: posenc's sweeps are grids."""
    hint = f"to search, pip install {SEARCHES.get(sweeper, sweeper)} and let its objective run\n"
    hint += "posenc train KEY=VALUE ... and read the run's results.json"
    return UserError("hydra/sweeper", sweeper, "sweeps are grids here", allowed="basic", hint=hint)


def unreadable_yaml(error: yaml.YAMLError) -> UserError:
    """A file of the user's that is not YAML."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or first_line(error)
    where = "--config-dir" if mark is None else str(mark.name)
    line = "" if mark is None else f" in line {mark.line + 1}"
    return UserError(where, None, f"cannot be read as YAML{line}: {problem}")


def unknown_key(key: str, value: object, known: list[str], elsewhere: str | None = None) -> UserError:
    """A key that does not exist, with the nearest of the `known` dotted keys, or whose it is."""
    parent = key.rpartition(".")[0]
    while not (siblings := [k for k in known if k.rpartition(".")[0] == parent]):
        parent = parent.rpartition(".")[0]
    known = [k for k in known if k.startswith("hydra") == key.startswith("hydra")]
    leaf = nearest(key, {k.rpartition(".")[2]: None for k in known}) if "." not in key else None
    alike = [k for k in known if leaf is not None and k.rpartition(".")[2] == leaf]
    close = " or ".join(alike) or nearest(key, [k for k in known if not key.startswith(f"{k}.")])
    hint = elsewhere or (f"did you mean: {close}" if close else None)
    allowed = ", ".join(sorted(siblings)) or None
    return UserError(key, value, "there is no such setting", allowed=allowed, hint=hint)


def translated(
    overrides: list[str], error: Exception, composed: Composed, trained: Composed | None = None
) -> UserError:
    """Return the UserError of a wrong override; `trained`: of the training, where the command reads a run."""
    cause = error.__cause__ or error
    text, whole = first_line(cause), str(error)
    key = getattr(cause, "full_key", None)
    said = re.search(r"Error merging override (\S+?)=(.*)", whole) or re.search(
        r"append to your config use \+(\S+?)=(.*)", whole
    )
    value = said[2] if said else None
    if isinstance(error, OverrideParseException):
        return unreadable(error.override)
    if in_a_file := _in_a_file(whole):
        return in_a_file
    no_group = re.search(r"Could not override '([^']+)'\.\s*No match", whole)
    unknown = (no_group and no_group[1]) or key
    if trained is not None and unknown:
        of_training = {str(one) for one in trained([])} - {str(one) for one in composed([])}
        if group_of(key_of(unknown)) in of_training:
            hint = "a run is measured as it was trained; what eval takes: posenc eval --help"
            return UserError(said[1] if said else unknown, value, "is the run's own", hint=hint)
    if no_group and not key:
        return unknown_key(no_group[1], None, _keys(composed([])), _elsewhere(no_group[1]))
    if ambiguous := re.search(r"Ambiguous value for argument '([^=']+)=(.*)'", whole):
        hint = "for a sweep add -m; for a list write [a,b]"
        if OmegaConf.is_list(OmegaConf.select(composed(_choices(overrides)), ambiguous[1])):
            hint = f"a list is written so: '{ambiguous[1]}=[{ambiguous[2]}]'"
        return UserError(ambiguous[1], ambiguous[2], "several values", hint=hint)
    if not key:
        return UserError("override", None, first_line(error))
    if said and said[1].startswith(f"{key}."):  # `key` is the part that holds no further keys
        return unknown_key(said[1], value, _keys(composed([])), _elsewhere(said[1]))
    if said and said[1] != key:
        value = None  # it is that of a mapping, and the key is one inside it
    if "not in struct" in text or re.search(r"Key '.*' not in", text):
        return unknown_key(key, value, _keys(composed(_choices(overrides))), _elsewhere(key))
    is_section = "is not a subclass of" in text or "is not Optional" in text
    if is_section and (inside := [name for name in _keys(composed([])) if name.startswith(f"{key}.")]):
        return UserError(key, value, "is a group of settings: name one of them", allowed=inside)
    wanted = next((f"allowed: {words}" for kind, words in WANTED.items() if kind in text), None)
    return UserError(key, value, text, hint=wanted)


def is_choice(override: str) -> bool:
    """Return whether it chooses a YAML of a group (`encoding=rope`); `encoding={base:5}` does not."""
    group, _, value = override.partition("=")
    if not re.fullmatch(r"\w[\w/]*", group) or value.lstrip().startswith("{"):
        return False
    return os.path.isdir(conf_dir() / group)  # noqa: PTH112  Path.is_dir raises for a name too long


def _choices(overrides: list[str]) -> list[str]:
    """Return the overrides that choose YAMLs, each with one value."""
    single = [o for o in overrides if not re.search(r"=[^\[{'\"]*,", o)]
    return [o for o in single if is_choice(o) or o.startswith("hydra.searchpath=")]


def _in_a_file(text: str) -> UserError | None:
    """A YAML of the user's that sets what does not exist."""
    found = re.match(r"In '([^']+)': \w+ raised while composing config:\n(.+)", text)
    if found is None:
        return None
    file, problem = found.groups()
    hint = None
    if "not in" in problem:
        hint = f"it stands for {file.rpartition('/')[0]}; to set anything else, begin with the line\n"
        hint += "# @package _global_      and choose others by a defaults list: - override /encoding: rope"
    return UserError(f"{file}.yaml", None, problem, hint=hint)


def _elsewhere(key: str) -> str | None:
    """Return which other choices of its group, or which command, have a setting of this name."""
    group, _, name = key.partition(".")
    if group == "extend":
        return "extensions are for trained models: posenc eval run=DIR extend=..."
    files = choice_files(group) if is_choice(f"{group}=") else {}
    having = [
        choice
        for choice, path in files.items()
        if name and name in (yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    ]
    return f"{key} is a setting of {group}={', '.join(having)}" if having else None


def _keys(config: Any, prefix: str = "") -> list[str]:
    keys: list[str] = []
    for key in config:
        name = f"{prefix}{key}"
        keys.append(name)
        child = OmegaConf.select(config, str(key), throw_on_missing=False)
        if isinstance(child, DictConfig):
            keys += _keys(child, f"{name}.")
    return keys
