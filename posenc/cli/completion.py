"""Hydra's keys, groups and values for Typer's completion at a TAB.

Runs at every TAB, so it reads YAML files and imports neither Hydra nor torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import typer

from posenc.evaluation import PROTOCOLS

DATA_GROUPS = ("data", "tokenizer")  # all that `posenc data` reads


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Return a hook of Typer's that completes to one of these names."""

    def complete(incomplete: str) -> list[str]:
        return _fitting(names, incomplete)

    return complete


def complete_table(incomplete: str) -> list[str]:
    from posenc.report.against import tables

    return _fitting(tables(), incomplete)


def complete_encoding(incomplete: str) -> list[str]:
    from posenc.core.paths import choice_files

    return _fitting(list(choice_files("encoding")), incomplete)


def complete_where(incomplete: str) -> list[str]:
    from posenc.config.conf_text import chosen_settings, groups

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
    from posenc.config.conf_text import chosen_settings, config_dir_of, groups, values_of
    from posenc.core.paths import choice_files

    tree, config_dir = "eval" if command == "eval" else "train", config_dir_of(words)
    key, equals, value = incomplete.partition("=")
    if key == "run" and equals:
        return [f"run={one}" for one in complete_run(value)]
    settings = {one.key: one for one in chosen_settings(tree, words, config_dir)}
    keys = [*groups(tree), *settings]
    if command in ("prepare", "info"):
        keys = [one for one in keys if one.partition(".")[0] in DATA_GROUPS]
    if not equals:
        return _fitting(_next_level(keys, key), key)
    begun, last = re.fullmatch(r"(.*[\[,])?([^\[,]*)", value).groups()  # type: ignore[union-attr]
    used = (begun or "").strip("[],").split(",")
    if key in groups(tree) or key == "encoding.parts":
        listed = list(choice_files("encoding" if key == "encoding.parts" else key, config_dir))
    elif key == "eval.protocols":
        listed = list(PROTOCOLS)
    else:
        listed = values_of(settings[key]) if key in settings else []
    is_list = key == "eval.protocols" or (key in settings and settings[key].value.startswith("["))
    opening = "[" if is_list and begun is None else begun or ""
    return [f"{key}={opening}{one}" for one in _fitting(listed, last) if one not in used]


def _next_level(keys: Iterable[str], begun: str) -> list[str]:
    """Return one level at a time: `encoding=`, `train.`, then `train.lr=`."""
    found = []
    for key in keys:
        section, dot, _ = key.rpartition(".")
        found.append(f"{key}=" if not dot or begun.startswith(f"{section}.") else f"{key.split('.')[0]}.")
    return list(dict.fromkeys(found))


def _fitting(listed: Iterable[str], begun: str) -> list[str]:
    return [one for one in listed if one.startswith(begun)]
