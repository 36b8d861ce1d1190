"""Read the YAML tree as users see it: groups, choices, and every setting with its value and comment.

This module imports neither Hydra nor torch, as it runs at every `--help` and at every TAB.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.config.keys import key_of
from posenc.core.paths import choice_file, conf_dir, expanded, load_yaml

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

NO_SETTINGS = ("defaults", "hydra")  # keys of a YAML file that are for Hydra


@dataclass(frozen=True)
class Setting:
    """Hold a setting as a YAML file writes it."""

    key: str
    value: str  # empty for a list or mapping over several lines
    comment: str


def command_tree(command: str) -> dict[str, Any]:
    """Return `conf/COMMAND.yaml` as plain data."""
    return load_yaml(conf_dir() / f"{command}.yaml")


def default_choices(command: str) -> dict[str, str | None]:
    """Return the groups of a command, in order, with their default choices, which may be None."""
    choices: dict[str, str | None] = {}
    for entry in command_tree(command)["defaults"]:
        if isinstance(entry, dict):
            for group, choice in entry.items():
                # `override hydra/job_logging` changes a group of Hydra's, which is no choice of posenc's.
                if not str(group).startswith("override "):
                    choices[str(group)] = choice
    return choices


def chosen_settings(
    command: str, overrides: Iterable[str] = (), config_dir: str | None = None
) -> list[Setting]:
    """Return every setting of a command: its own, then those of the groups as the overrides choose them."""
    chosen = {key_of(override): override.partition("=")[2] for override in overrides}
    # conf/eval.yaml has nulls without comments; conf/eval/default.yaml has the comments
    comments = {
        setting.key: setting.comment for setting in settings_in(conf_dir() / "eval" / "default.yaml", "eval.")
    }
    settings: list[Setting] = []
    for setting in settings_in(conf_dir() / f"{command}.yaml"):
        comment = setting.comment or comments.get(setting.key, "")
        settings.append(replace(setting, comment=comment))
    for group, default in default_choices(command).items():
        path = choice_file(group, chosen.get(group, default), config_dir)
        # An experiment sets settings of others, and has none of its own.
        if path is not None and group != "experiment":
            settings += settings_in(path, f"{group}.")
    return settings


def settings_in(path: Path, prefix: str = "") -> list[Setting]:
    """Return the settings of a YAML file, in order, without a group's `name` and without Hydra's own part."""
    # Comments are read by ruamel.yaml, which keeps them. Values are taken as they are written: its YAML 1.2
    # reads `off` as text, where Hydra's YAML 1.1 reads false.
    from ruamel.yaml import YAML

    text = path.read_text(encoding="utf-8")
    tree = YAML(typ="rt").compose(text)
    settings: list[Setting] = []
    for setting in _settings_below(tree, prefix, text):
        is_for_hydra = setting.key.split(".")[0] in NO_SETTINGS
        is_name_of_group = bool(prefix) and setting.key == f"{prefix}name"
        if not is_for_hydra and not is_name_of_group:
            settings.append(setting)
    return settings


def _settings_below(tree: Node, prefix: str, text: str) -> list[Setting]:
    """Return the settings below a mapping of the YAML `text`. A value on one line is one setting."""
    settings: list[Setting] = []
    for key, node in tree.value:
        name = prefix + key.value
        is_block = node.start_mark.line > key.start_mark.line
        if isinstance(node.value, list) and is_block and _is_mapping(node):
            settings += _settings_below(node, f"{name}.", text)
        # A list over several lines: its comment may stand behind the key, or below the last item.
        elif is_block:
            settings.append(Setting(name, "", _comment(key) or _comment(node)))
        else:
            written = text[node.start_mark.index : node.end_mark.index].strip()
            settings.append(Setting(name, written, _comment(node)))
    return settings


def _is_mapping(node: Node) -> bool:
    return str(node.tag).endswith(":map")


def _comment(node: Node) -> str:
    """Return the comment after a node, with its continuation on the lines below, as one line."""
    if not node.comment or node.comment[0] is None:
        return ""
    # ruamel.yaml adds the comment of the next setting to that of the last one. An empty line parts them.
    block, _, _ = node.comment[0].value.partition("\n\n")
    return " ".join(line.strip().lstrip("# ") for line in block.splitlines()).strip()


def first_sentence(path: Path) -> str:
    """Return the first sentence of the comment that a YAML file begins with; empty without one."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.lstrip("# ").strip()
        if not text.startswith("@"):  # `@package _global_` is for Hydra
            lines.append(text)
    sentence, _, _ = " ".join(lines).partition(". ")
    return sentence.removesuffix(".")


def config_dir_of(arguments: Iterable[str]) -> str | None:
    """Return the folder after `--config-dir`, if the arguments name one, with `~` expanded."""
    remaining = iter(arguments)
    for argument in remaining:
        flag, _, value = argument.partition("=")
        if flag in ("--config-dir", "-cd"):
            folder = value or next(remaining, None)
            # Shells expand `~` only where a word begins with it, and not in `--config-dir=~/x`.
            return None if folder is None else str(expanded(folder))
    return None
