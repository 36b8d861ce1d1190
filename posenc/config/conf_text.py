"""Read the YAML tree as text, for help and completion: settings with their comments, choices of groups.

Imports neither Hydra nor torch: it runs at every TAB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from posenc.config.overrides import key_of
from posenc.core.paths import choice_file, conf_dir

LINE = re.compile(
    r"(?P<indent> *)(?P<key>[A-Za-z_][\w-]*):(?: +(?P<value>[^#\s].*?))?(?: +# *(?P<comment>.*))?"
)


@dataclass(frozen=True)
class Setting:
    """A key, its default as it stands in the YAML ("" where a list follows), and the comment beside it."""

    key: str
    value: str
    comment: str


def settings_of(path: Path, prefix: str = "") -> list[Setting]:
    """Return the leaves of a YAML file, in order, without a group's `name` and without Hydra's own part."""
    found: list[Setting] = []
    above: list[tuple[int, str]] = []  # indent and name of the keys that a line lies in
    for line in path.read_text(encoding="utf-8").splitlines():
        match = LINE.fullmatch(line.rstrip())
        if match is None:
            continue
        indent, key = len(match["indent"]), match["key"]
        above = [(depth, name) for depth, name in above if depth < indent] + [(indent, key)]
        dotted = ".".join(name for _, name in above)
        if above[0][1] in ("defaults", "hydra") or (dotted == "name" and prefix):
            continue
        value, comment = match["value"] or "", match["comment"] or ""
        if value or comment or key == "exclude":
            found.append(Setting(f"{prefix}{dotted}", value, comment))
    sections = {setting.key.rpartition(".")[0] for setting in found}
    return [setting for setting in found if setting.key not in sections]


def command_tree(command: str) -> dict[str, Any]:
    """Return `conf/COMMAND.yaml` as data."""
    tree: dict[str, Any] = yaml.safe_load((conf_dir() / f"{command}.yaml").read_text(encoding="utf-8"))
    return tree


def groups(command: str) -> dict[str, str | None]:
    """Return the groups of a command and their default choices (None: nothing chosen), in order."""
    entries = [entry for entry in command_tree(command)["defaults"] if isinstance(entry, dict)]
    pairs = [(str(key), value) for entry in entries for key, value in entry.items()]
    return {key: value for key, value in pairs if not key.startswith("override ")}


def chosen_settings(
    command: str, overrides: Iterable[str] = (), config_dir: str | None = None
) -> list[Setting]:
    """Return every setting of a command: its own, then those of the groups as the overrides choose them.

    What is null in `posenc eval` has the comment of the default evaluation.
    """
    picked = {key_of(override): override.partition("=")[2] for override in overrides}
    usual = settings_of(conf_dir() / "eval" / "default.yaml", "eval.")
    comments = {setting.key: setting.comment for setting in usual}
    own = settings_of(conf_dir() / f"{command}.yaml")
    found = [Setting(one.key, one.value, one.comment or comments.get(one.key, "")) for one in own]
    for group, default in groups(command).items():
        path = choice_file(group, picked.get(group, default), config_dir)
        if path is not None and group != "experiment":
            found += settings_of(path, f"{group}.")
    return found


def values_of(setting: Setting) -> list[str]:
    """Return what the comment says a setting may be (`a | b | c: why`), else its default or true, false."""
    parts = re.sub(r"\([^)]*\)", "", setting.comment).partition(": ")[0].split(" | ")
    if len(parts) > 1:
        return [part.strip() for part in parts if re.fullmatch(r"[\w.-]+", part.strip())]
    if setting.value in ("true", "false"):
        return ["true", "false"]
    if setting.value.startswith("["):
        return [part.strip() for part in setting.value.strip("[]").split(",") if part.strip()]
    return [setting.value] if re.fullmatch(r"[\w./+-]+", setting.value) else []


def config_dir_of(arguments: Sequence[str]) -> str | None:
    """Return the folder after `--config-dir`, where there is one."""
    for i, word in enumerate(arguments):
        name, _, value = word.partition("=")
        if name in ("--config-dir", "-cd"):
            return value or next(iter(arguments[i + 1 :]), None)
    return None
