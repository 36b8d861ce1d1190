"""What could stand at the cursor of a command line: commands, options, Hydra's keys, groups and values.

Runs at every TAB, so it reads YAML files and the command tree and imports neither Hydra nor torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from posenc.config.conf_text import choices, chosen_settings, config_dir_of, groups, values_of

OVERRIDES = {"eval": "eval", **dict.fromkeys(("train", "check", "show", "bench", "prepare", "info"), "train")}
ONLY_DATA = {"prepare": ("data", "tokenizer"), "info": ("data", "tokenizer")}
HYDRA = ("--multirun", "--cfg", "--config-dir", "--info", "--hydra-help", "--help")
HYDRA_VALUES = {"--cfg": ["job", "hydra", "all"], "--info": ["defaults", "defaults-tree", "plugins"]}
MARKS = ("status.json", "results.json")  # of a run directory
MOST_RUNS = 500


def candidates(words: Sequence[str], current: str) -> list[str]:
    """Words that `current` may become, behind the `words` of a command line without the program's name."""
    command, path = _command(words)
    before = words[-1] if words else ""
    if before.startswith("--") and "=" not in before and (found := _after(command, path, before)) is not None:
        return _fitting(found, current)
    if current.startswith("-"):
        name, sign, begun = current.partition("=")
        if sign:
            return [f"{name}={one}" for one in _fitting(_after(command, path, name) or [], begun)]
        return _fitting(_options(command, path), current)
    if hasattr(command, "commands"):
        return _fitting(sorted(command.commands), current)
    if path in (["show"], ["eval"]) and current.startswith("run="):
        return [f"run={one}" for one in _runs(current.removeprefix("run="))]
    if path and path[-1] in OVERRIDES:
        return _overrides(path[-1], words, current)
    if path == ["encodings"]:
        return _fitting(choices("encoding"), current)
    if path in (["compare"], ["runs"]):
        return _runs(current)
    return _fitting(("bash", "zsh", "fish"), current) if path == ["completion"] else []


def _command(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that the words lead to, and its name as a list: `["data", "prepare"]`."""
    from typer.main import get_command

    from posenc.cli import app

    command: Any = get_command(app)
    path: list[str] = []
    for word in words:
        inner = getattr(command, "commands", {}).get(word)
        if inner is not None:
            command, path = inner, [*path, word]
    return command, path


def _options(command: Any, path: Sequence[str]) -> list[str]:
    own = [name for param in command.params for name in param.opts if name.startswith("--")]
    return sorted({*own, "--help", *(HYDRA if path and path[-1] in ("train", "eval") else ())})


def _after(command: Any, path: Sequence[str], option: str) -> list[str] | None:
    """What the value of an option may be; None for one that takes none, [] where files are meant."""
    if path and path[-1] in ("train", "eval") and option in (*HYDRA_VALUES, "--config-dir"):
        return HYDRA_VALUES.get(option, [])
    param = next((one for one in command.params if option in one.opts), None)
    if param is None or param.is_flag:
        return None
    if option == "--against":
        from posenc.results.published import tables

        return tables()
    if option == "--protocol":
        from posenc.evaluation import PROTOCOLS

        return list(PROTOCOLS)
    if option == "--where":
        keys = [f"{setting.key}=" for setting in chosen_settings("train")]
        return [*(f"{group}=" for group in groups("train")), *keys]
    return _named(getattr(param, "help", "") or "")


def _named(told: str) -> list[str]:
    """The choices in `table, markdown or json.`, at the beginning of an option's help."""
    sentence = re.sub(r" \([^)]*\)", "", told).partition(". ")[0].removesuffix(".")
    parts = re.split(r", | or ", sentence)
    fine = len(parts) > 1 and " or " in sentence and all(re.fullmatch(r"[\w-]+", part) for part in parts)
    return parts if fine else []


def _overrides(command: str, words: Sequence[str], current: str) -> list[str]:
    """Keys (`train.lr=`), groups (`encoding=`) and values, also the last one of a list or a sweep."""
    tree, config_dir = OVERRIDES[command], config_dir_of(words)
    sign = re.match(r"(\+\+|\+|~)?", current)
    prefix = sign[0] if sign else ""
    key, equals, value = current.removeprefix(prefix).partition("=")
    there = {name: default for name, default in groups(tree).items() if _of(command, name)}
    settings = [one for one in chosen_settings(tree, words, config_dir) if _of(command, one.key)]
    if not equals:
        return [prefix + one for one in _keys(there, [one.key for one in settings], key)]
    begun, last = re.fullmatch(r"(.*[\[,])?([^\[,]*)", value).groups()  # type: ignore[union-attr]
    used = (begun or "").strip("[],").split(",")
    named = next((one for one in settings if one.key == key), None)
    if key in there:
        listed: Iterable[str] = choices(key, config_dir)
    elif key == "eval.protocols":
        from posenc.evaluation import PROTOCOLS

        listed = PROTOCOLS
    elif key == "encoding.parts":
        listed = choices("encoding", config_dir)
    else:
        listed = values_of(named) if named is not None else []
    is_list = named is not None and (named.value.startswith("[") or key in ("eval.protocols", "eval.lengths"))
    opening = "[" if is_list and begun is None else begun or ""
    return [f"{prefix}{key}={opening}{one}" for one in _fitting(listed, last) if one not in used]


def _keys(there: Iterable[str], settings: Iterable[str], begun: str) -> list[str]:
    """One level at a time: `encoding=`, `train.`, then `train.lr=`."""
    found = [f"{name}=" for name in there]
    for key in settings:
        section, _, _ = key.rpartition(".")
        inside = begun.startswith(f"{section}.") or not section
        found.append(f"{key}=" if inside else f"{key.split('.')[0]}.")
    return _fitting(dict.fromkeys(found), begun)


def _of(command: str, key: str) -> bool:
    return command not in ONLY_DATA or key.partition(".")[0] in ONLY_DATA[command]


def _runs(begun: str) -> list[str]:
    """Run directories below what was begun to be typed, or below `runs`; folders on the way to others."""
    place = Path(begun).expanduser() if begun else Path("runs")
    start = place if begun.endswith("/") or not begun else place.parent
    found = []
    for folder, subfolders, files in os.walk(start):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        if any(mark in files for mark in MARKS):
            subfolders.clear()
            if str(Path(folder)).startswith(begun.removeprefix("./")):
                found.append(str(Path(folder)))
        if len(found) >= MOST_RUNS or len(Path(folder).parts) - len(start.parts) > 4:
            subfolders.clear()
    return found


def _fitting(listed: Iterable[str], begun: str) -> list[str]:
    return [one for one in listed if one.startswith(begun)]
