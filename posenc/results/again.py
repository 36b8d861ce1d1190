"""The command line that gives a run's settings again: what continues a run that was stopped or killed."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path
from typing import Any

from posenc.core.paths import choice_file, conf_dir
from posenc.results.settings import as_text

PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+@%-]*|-?[0-9]+x?|[0-9.]+x")
MEANING = {"null", "true", "false", "nan", "inf", "on", "off", "yes", "no", "none"}  # to YAML or Hydra
FOUND_BY_HASH = {"name", "runs_dir", "experiment_name"}  # said by where the run lies


def command_again(config: dict[str, Any], directory: Path) -> str | None:
    """`posenc train ...`, quoted for a shell, for the settings of a config.yaml in `directory`.

    None where a choice of it is none of posenc's or of an installed package: only the user knows its folder.
    """
    defaults = _yaml(conf_dir() / "train.yaml")
    words: list[str] = []
    for group, default in _groups(defaults).items():
        own = _group(group, config.get(group), default)
        if own is None:
            return None
        words += own
    for key, ordinary in defaults.items():
        if key not in ("defaults", "hydra") and key not in FOUND_BY_HASH and key in config:
            words += _differences(key, config[key], ordinary)
    return shlex.join(["posenc", "train", *words, *_place(directory, config, defaults)])


def _groups(defaults: dict[str, Any]) -> dict[str, str]:
    """The groups of a training and their default choices."""
    entries = [entry for entry in defaults["defaults"] if isinstance(entry, dict)]
    pairs = [(str(key), value) for entry in entries for key, value in entry.items()]
    return {key: value for key, value in pairs if isinstance(value, str) and not key.startswith("override ")}


def _group(group: str, settings: Any, default: str) -> list[str] | None:
    if not isinstance(settings, dict):
        return []
    choice = settings.get("name", default)
    path = choice_file(group, choice)
    if path is None and group == "model":  # one of sizes of its own has them for a name
        choice, path = default, choice_file(group, default)
    if path is None:
        return None
    chosen = [] if choice == default and group != "encoding" else [f"{group}={choice}"]
    for key, value in settings.items():
        if key != "name":
            chosen += _differences(f"{group}.{key}", value, _yaml(path).get(key, ...))
    return chosen


def _differences(key: str, value: Any, ordinary: Any) -> list[str]:
    if isinstance(value, dict) and isinstance(ordinary, dict):
        return [
            word
            for name, one in value.items()
            for word in _differences(f"{key}.{name}", one, ordinary.get(name, ...))
        ]
    same = ordinary is not ... and (value == ordinary or as_text(value) == as_text(_number(ordinary)))
    return [] if same else [f"{key}={override_text(value)}"]


def override_text(value: Any) -> str:
    """A value as Hydra reads it in an override."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{override_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(override_text(one) for one in value) + "]"
    if not isinstance(value, str):
        return as_text(value)
    if PLAIN.fullmatch(value) and value.lower() not in MEANING:
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _place(directory: Path, config: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    experiment, runs_dir = directory.parent.name, directory.parent.parent
    words = (
        [] if experiment == defaults["experiment_name"] else [f"experiment_name={override_text(experiment)}"]
    )
    return (
        words
        if str(runs_dir) == defaults["runs_dir"]
        else [*words, f"runs_dir={override_text(str(runs_dir))}"]
    )


def _number(value: Any) -> Any:
    """YAML 1.1 takes 4e6 for text, OmegaConf for a number."""
    if isinstance(value, str) and re.fullmatch(r"[0-9.]+e[+-]?[0-9]+", value):
        return float(value)
    return value


@functools.cache
def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values
