"""The command line that reproduces a run's settings: what resumes a run that was stopped or killed."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path
from typing import Any

from posenc.core.paths import choice_file, conf_dir
from posenc.results.settings import as_text

PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+@%-]*|-?[0-9]+x?|[0-9.]+x")
RESERVED = {"null", "true", "false", "nan", "inf", "on", "off", "yes", "no", "none"}  # to YAML or Hydra
FROM_PATH = {"name", "runs_dir", "experiment_name"}  # follow from where the run lies
MISSING = object()


def resume_command(config: dict[str, Any], directory: Path) -> str | None:
    """Return `posenc train ...`, quoted for a shell, for the settings of a config.yaml in `directory`.

    None where a choice is neither posenc's nor an installed package's: only the user knows its folder.
    """
    defaults = _yaml(conf_dir() / "train.yaml")
    words: list[str] = []
    for group, default in _groups(defaults).items():
        own = _group(group, config.get(group), default)
        if own is None:
            return None
        words += own
    for key, default in defaults.items():
        if key not in ("defaults", "hydra") and key not in FROM_PATH and key in config:
            words += _overrides(key, config[key], default)
    place = {"experiment_name": directory.parent.name, "runs_dir": str(directory.parent.parent)}
    words += [f"{key}={override_text(value)}" for key, value in place.items() if value != defaults[key]]
    return shlex.join(["posenc", "train", *words])


def override_text(value: Any) -> str:
    """Return a value as Hydra reads it in an override."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{override_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(override_text(one) for one in value) + "]"
    if not isinstance(value, str):
        return as_text(value)
    if PLAIN.fullmatch(value) and value.lower() not in RESERVED:
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _groups(defaults: dict[str, Any]) -> dict[str, str]:
    """Return the config groups of a training and their default choices."""
    entries = [entry for entry in defaults["defaults"] if isinstance(entry, dict)]
    pairs = [(str(key), value) for entry in entries for key, value in entry.items()]
    return {key: value for key, value in pairs if isinstance(value, str) and not key.startswith("override ")}


def _group(group: str, settings: Any, default: str) -> list[str] | None:
    """Return the overrides of one group; None for a choice without a YAML."""
    if not isinstance(settings, dict):
        return []
    choice = settings.get("name", default)
    path = choice_file(group, choice)
    if path is None and group == "model":  # a model with sizes of its own is named by them
        choice, path = default, choice_file(group, default)
    if path is None:
        return None
    words = [] if choice == default and group != "encoding" else [f"{group}={choice}"]
    for key, value in settings.items():
        if key != "name":
            words += _overrides(f"{group}.{key}", value, _yaml(path).get(key, MISSING))
    return words


def _overrides(key: str, value: Any, default: Any) -> list[str]:
    """Return the overrides that turn `default` into `value`."""
    if isinstance(value, dict) and isinstance(default, dict):
        inner = [_overrides(f"{key}.{name}", one, default.get(name, MISSING)) for name, one in value.items()]
        return [word for words in inner for word in words]
    if isinstance(default, str) and re.fullmatch(r"[0-9.]+e[+-]?[0-9]+", default):
        default = float(default)  # YAML 1.1 reads 4e6 as text, OmegaConf as a number
    if default is not MISSING and (value == default or as_text(value) == as_text(default)):
        return []
    return [f"{key}={override_text(value)}"]


@functools.cache
def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return values
