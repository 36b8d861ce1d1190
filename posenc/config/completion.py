"""What a shell offers at a TAB: keys, choices, runs, tables. Imports neither Hydra nor torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path

import typer

from posenc.config.yaml_files import chosen_settings, config_dir_of, groups
from posenc.core.paths import choice_files, is_folder

OF_DATA_COMMANDS = ("data", "tokenizer")  # the keys that `posenc data prepare` and `info` take


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Return a hook of Typer's that completes to one of these names."""
    return lambda incomplete: _beginning_with(incomplete, names)


def table_names() -> list[str]:
    """Return the names of the papers' tables, from the file itself: `--help` lists them."""
    # posenc.results.published reads the numbers, and imports all that compares runs
    text = files("posenc").joinpath("results", "published.csv").read_text(encoding="utf-8")
    _, *lines = text.splitlines()
    return list(dict.fromkeys(line.partition(",")[0] for line in lines))


def complete_table(incomplete: str) -> list[str]:
    """Return the published tables that begin so."""
    return _beginning_with(incomplete, table_names())


def complete_encoding(incomplete: str) -> list[str]:
    """Return the encodings that begin so."""
    return _beginning_with(incomplete, choice_files("encoding"))


def complete_where(incomplete: str) -> list[str]:
    """Return the keys, each with its `=`, that `--where` compares."""
    keys = [*groups("train"), *(setting.key for setting in chosen_settings("train"))]
    return _beginning_with(incomplete, [f"{key}=" for key in keys])


def complete_run(incomplete: str) -> list[str]:
    """Return run directories below what was typed, or below `runs`."""
    typed = Path(incomplete or "runs")
    start = typed if is_folder(typed) else typed.parent
    runs: list[str] = []
    for depth in range(4):
        runs += [str(status.parent) for status in start.glob("*/" * depth + "status.json")]
    return _beginning_with(incomplete, sorted(runs))


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return overrides that the last word may become.

    Bash breaks words at `=`, so there the words are read from its own variables, and only what follows the
    last `=` is returned.
    """
    # other shells hand the whole word over
    words = list(ctx.params.get("overrides") or [])
    already_typed = 0
    if "COMP_WORDS" in os.environ:
        words, incomplete = _words_of_bash()
        already_typed = incomplete.rfind("=") + 1
    return [candidate[already_typed:] for candidate in candidates(str(ctx.info_name), words, incomplete)]


def _words_of_bash() -> tuple[list[str], str]:
    """Return the words before the cursor and the one at it, with the spaces around `=` taken out."""
    position = int(os.environ["COMP_CWORD"])
    typed = os.environ["COMP_WORDS"].split()[: position + 1]
    if len(typed) <= position:  # the cursor stands behind a space
        typed.append("")
    *words, incomplete = re.sub(r" ?= ?", "=", " ".join(typed)).split(" ")
    return words, incomplete


def candidates(command: str, words: Sequence[str], incomplete: str) -> list[str]:
    """Return the overrides that `incomplete` may become, behind `words`.

    A single key comes with its choices, so that a TAB never ends behind `=`, where a shell would put a space.
    """
    tree = "eval" if command == "eval" else "train"
    config_dir = config_dir_of(words)
    key, equals, value = incomplete.partition("=")
    if not equals:
        keys = [*groups(tree), *(setting.key for setting in chosen_settings(tree, words, config_dir))]
        if command in ("prepare", "info"):
            keys = [name for name in keys if name.startswith(OF_DATA_COMMANDS)]
        fitting = _beginning_with(key, [f"{name}=" for name in keys])
        if len(fitting) == 1:
            return candidates(command, words, fitting[0]) or fitting
        return fitting
    if key == "run":
        return [f"run={run}" for run in complete_run(value)]
    return [f"{key}={completed}" for completed in _values(key, value, config_dir)]


def _values(key: str, value: str, config_dir: str | None) -> list[str]:
    """Return what a value may become; of a list such as `rope,al` the last item is completed."""
    if key == "eval.protocols":
        from posenc.evaluation.protocols import protocol_names

        names: Iterable[str] = protocol_names()
    else:
        names = choice_files(key.replace(".parts", ""), config_dir)
    before = re.match(r".*[\[,]", value)
    finished = before.group() if before else ""
    return [finished + name for name in _beginning_with(value.removeprefix(finished), names)]


def _beginning_with(typed: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(typed)]
