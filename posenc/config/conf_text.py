"""The YAML tree as help and completion show it: settings with their comments, choices. No Hydra, no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.config.overrides import key_of
from posenc.core.paths import choice_file, choice_files, conf_dir

LINE = re.compile(
    r"(?P<indent> *)(?P<key>[A-Za-z_][\w-]*):(?: +(?P<value>[^#\s].*?))?(?: +# *(?P<comment>.*))?"
)
NOT_SETTINGS = ("defaults", "hydra")


@dataclass(frozen=True)
class Setting:
    """A key with its default as it stands in the YAML ("" where a list follows) and the comment beside it."""

    key: str
    value: str
    comment: str


def settings_of(path: Path, prefix: str = "") -> list[Setting]:
    """The leaves of a YAML file, in order; not `name`, which is the choice, nor Hydra's own part."""
    found: list[Setting] = []
    above: list[tuple[int, str]] = []  # the keys that a line lies in
    for line in path.read_text(encoding="utf-8").splitlines():
        match = LINE.fullmatch(line.rstrip())
        if match is None:
            continue
        indent, key, value = len(match["indent"]), match["key"], match["value"] or ""
        above = [entry for entry in above if entry[0] < indent]
        top = above[0][1] if above else key
        dotted = ".".join([*(name for _, name in above), key])
        above.append((indent, key))
        if top in NOT_SETTINGS or (dotted == "name" and prefix):
            continue
        comment = match["comment"] or ""
        if value or comment or key in ("exclude",):
            found.append(Setting(f"{prefix}{dotted}", value, comment))
    sections = {setting.key.rpartition(".")[0] for setting in found}
    return [setting for setting in found if setting.key not in sections]


def groups(command: str) -> dict[str, str | None]:
    """The groups of a command and their default choices (None: nothing chosen), in the order of its YAML."""
    import yaml

    tree = yaml.safe_load((conf_dir() / f"{command}.yaml").read_text(encoding="utf-8"))
    entries = [entry for entry in tree["defaults"] if isinstance(entry, dict)]
    pairs = [(str(key), value) for entry in entries for key, value in entry.items()]
    return {key: value for key, value in pairs if not key.startswith("override ")}


def choices(group: str, config_dir: str | None = None) -> dict[str, str]:
    """What a group may be, with the first comment line of each YAML; those of `--config-dir` and of
    installed packages too.
    """
    return {name: _description(path) for name, path in choice_files(group, config_dir).items()}


def chosen_settings(
    command: str, overrides: Iterable[str] = (), config_dir: str | None = None
) -> list[Setting]:
    """Every setting of a command: its own, then those of the groups as the overrides choose them.

    What is null in `posenc eval` has the comment of the default evaluation.
    """
    picked = {key_of(override): override.partition("=")[2] for override in overrides}
    own = settings_of(conf_dir() / f"{command}.yaml")
    ordinary = settings_of(conf_dir() / "eval" / "default.yaml", "eval.")
    told = {setting.key: setting.comment for setting in ordinary}
    found = [Setting(one.key, one.value, one.comment or told.get(one.key, "")) for one in own]
    for group, default in groups(command).items():
        choice = picked.get(group, default)
        path = choice_file(group, choice, config_dir)
        if path is not None and group != "experiment":
            found += settings_of(path, f"{group}.")
    return found


def values_of(setting: Setting) -> list[str]:
    """What the comment says a setting may be (`a | b | c: why`); else true and false, else what it is now."""
    said = re.sub(r"\([^)]*\)", "", setting.comment).partition(": ")[0]
    parts = [part.strip() for part in said.split(" | ")]
    if len(parts) > 1:
        return [part for part in parts if re.fullmatch(r"[\w.-]+", part)]
    if setting.value in ("true", "false"):
        return ["true", "false"]
    if setting.value.startswith("["):
        listed = [part.strip() for part in setting.value.strip("[]").split(",")]
        return [part for part in listed if part]
    return [setting.value] if re.fullmatch(r"[\w./+-]+", setting.value) and setting.value != "???" else []


def help_texts(command: str) -> Mapping[str, Any]:
    """The texts below `hydra.help`: header with purpose and examples, footer with the flags."""
    import yaml

    tree = yaml.safe_load((conf_dir() / f"{command}.yaml").read_text(encoding="utf-8"))
    texts: dict[str, Any] = tree["hydra"]["help"]
    return texts


def config_dir_of(arguments: Sequence[str]) -> str | None:
    """The folder after `--config-dir`, where there is one."""
    for i, word in enumerate(arguments):
        name, _, value = word.partition("=")
        if name in ("--config-dir", "-cd"):
            return value or (arguments[i + 1] if i + 1 < len(arguments) else None)
    return None


def _description(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
        second = file.readline() if first.startswith("# @package") else first
    return second.lstrip("#").strip() if second.startswith("#") else ""
