"""Read the YAML tree as text: settings with their comments for help, keys and values for Typer at a TAB.

Imports neither Hydra nor torch: it runs at every TAB.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
import yaml

from posenc.config.overrides import key_of
from posenc.core.paths import choice_file, choice_files, conf_dir
from posenc.evaluation import PROTOCOLS

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


# --- at a TAB


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Return a hook of Typer's that completes to one of these names."""
    return lambda incomplete: _fitting(names, incomplete)


def complete_table(incomplete: str) -> list[str]:
    from posenc.report.against import tables

    return _fitting(tables(), incomplete)


def complete_encoding(incomplete: str) -> list[str]:
    return _fitting(choice_files("encoding"), incomplete)


def complete_where(incomplete: str) -> list[str]:
    keys = [*groups("train"), *(setting.key for setting in chosen_settings("train"))]
    return _fitting((f"{key}=" for key in keys), incomplete)


def complete_run(incomplete: str) -> list[str]:
    """Return run directories below what was typed, or below `runs`."""
    place = Path(incomplete or "runs")
    start = place if place.is_dir() else place.parent
    found = [path.parent for depth in range(4) for path in start.glob("*/" * depth + "status.json")]
    return _fitting(sorted(map(str, found)), incomplete)


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return keys (`train.lr=`), groups and values; in bash, which breaks words at `=`, what follows it."""
    words, kept = list(ctx.params.get("overrides") or []), 0
    if "COMP_WORDS" in os.environ:
        at = int(os.environ["COMP_CWORD"])
        typed = os.environ["COMP_WORDS"].split()[: at + 1]
        line = re.sub(r" ?= ?", "=", " ".join([*typed, ""] if len(typed) <= at else typed))
        *words, incomplete = line.split(" ")
        kept = incomplete.rfind("=") + 1
    return [found[kept:] for found in candidates(str(ctx.info_name), words, incomplete)]


def candidates(command: str, words: Sequence[str], incomplete: str) -> list[str]:
    """Return the overrides that `incomplete` may become, behind `words`, with the values of a single key.

    So a TAB never ends behind `=` or `.`, where a shell would put a space.
    """
    found = _overrides(command, words, incomplete)
    while len(found) == 1 and found[0] != incomplete and found[0].endswith(("=", ".")):
        incomplete = found[0]
        found = _overrides(command, words, incomplete) or found
    return found


def _overrides(command: str, words: Sequence[str], incomplete: str) -> list[str]:
    tree, config_dir = "eval" if command == "eval" else "train", config_dir_of(words)
    key, equals, value = incomplete.partition("=")
    if key == "run" and equals:
        return [f"run={one}" for one in complete_run(value)]
    settings = {one.key: one for one in chosen_settings(tree, words, config_dir)}
    if not equals:
        keys = [*groups(tree), *settings]
        if command in ("prepare", "info"):  # of `posenc data`
            keys = [one for one in keys if one.startswith(("data", "tokenizer"))]
        levels = [_next_level(one, key) for one in keys]  # `encoding=`, `train.`, then `train.lr=`
        return _fitting(dict.fromkeys(levels), key)
    begun, last = re.fullmatch(r"(.*[\[,])?([^\[,]*)", value).groups()  # type: ignore[union-attr]
    setting = settings.get(key, Setting(key, "", ""))
    if key in groups(tree) or key == "encoding.parts":
        listed = [*choice_files("encoding" if key == "encoding.parts" else key, config_dir)]
    else:
        listed = list(PROTOCOLS) if key == "eval.protocols" else values_of(setting)
    is_list = key == "eval.protocols" or setting.value.startswith("[")
    opening = "[" if is_list and begun is None else begun or ""
    return [f"{key}={opening}{one}" for one in _fitting(listed, last)]


def _next_level(key: str, begun: str) -> str:
    section, dot, _ = key.rpartition(".")
    return f"{key}=" if not dot or begun.startswith(f"{section}.") else f"{key.split('.')[0]}."


def _fitting(listed: Iterable[str], begun: str) -> list[str]:
    return [one for one in listed if one.startswith(begun)]
