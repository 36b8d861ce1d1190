"""Complete what is typed at a TAB: keys, choices, runs, tables. Imports neither Hydra nor torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path

import typer

from posenc.config.keys import group_of, key_of
from posenc.config.keys_of_commands import (
    GROUPS_OF_SAMPLED_SUBJECT,
    KEYS_OF_DATA,
    KEYS_OF_INITIAL_MODEL,
    KEYS_OF_SAMPLE,
    KEYS_OF_SHOWN_RUN,
    is_read_by_bench,
)
from posenc.config.yaml_files import chosen_settings, config_dir_of, default_choices
from posenc.core.paths import choice_files, is_folder

# Commands that read some of the settings of `posenc train` alone.
KEYS_OF = {"check": KEYS_OF_INITIAL_MODEL, "prepare": KEYS_OF_DATA, "info": KEYS_OF_DATA}


def complete_names(*names: str) -> Callable[[str], list[str]]:
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
    keys = [*default_choices("train"), *(setting.key for setting in chosen_settings("train"))]
    return _beginning_with(incomplete, [f"{key}=" for key in keys])


def complete_run(incomplete: str) -> list[str]:
    """Return run directories below what was typed, or below `runs`."""
    typed = Path(incomplete or "runs")
    # A name that is typed in part is no folder yet, and completions lie in the one above it.
    start = typed if is_folder(typed) else typed.parent
    runs: list[str] = []
    # RUNS/EXPERIMENT/NAME is three deep. A search without an end would hang a shell in a large folder.
    for depth in range(4):
        runs += [str(status.parent) for status in start.glob("*/" * depth + "status.json")]
    return _beginning_with(incomplete, sorted(runs))


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the overrides that the last word may become.

    Bash breaks words at `=`, so there the words are read from its own variables, and only what follows the
    last `=` is returned.
    """
    # shells other than bash pass the whole word
    earlier_words = list(ctx.params.get("overrides") or [])
    already_typed = 0
    if "COMP_WORDS" in os.environ:
        earlier_words, incomplete = _words_of_bash()
        already_typed = incomplete.rfind("=") + 1
    completed = candidates(str(ctx.info_name), earlier_words, incomplete)
    return [candidate[already_typed:] for candidate in completed]


def _words_of_bash() -> tuple[list[str], str]:
    """Return the words before the cursor, and the word at it, without the spaces around `=`."""
    position = int(os.environ["COMP_CWORD"])
    # Words behind the cursor say nothing of the one that is completed.
    typed = os.environ["COMP_WORDS"].split()[: position + 1]
    if len(typed) <= position:  # the cursor stands behind a space
        typed.append("")
    line = re.sub(r" ?= ?", "=", " ".join(typed))
    *earlier_words, incomplete = line.split(" ")
    return earlier_words, incomplete


def candidates(command: str, words: Sequence[str], incomplete: str) -> list[str]:
    """Return the overrides that `incomplete` may become after `words`.

    A single key comes with its choices, so that a TAB never ends behind `=`, where a shell would put a space.
    """
    # The user's own folder of YAML may stand on the line already, and its choices count.
    config_dir = config_dir_of(words)
    key, equals, value = incomplete.partition("=")
    if not equals:
        matches = _beginning_with(key, [f"{name}=" for name in _keys(command, words, config_dir)])
        if len(matches) == 1:
            return candidates(command, words, matches[0]) or matches
        return matches
    if key == "run":
        return [f"run={run}" for run in complete_run(value)]
    return [f"{key}={completed}" for completed in _values(key, value, config_dir)]


def _keys(command: str, words: Sequence[str], config_dir: str | None) -> list[str]:
    """Return the keys that a command takes after `words`."""
    is_of_run = command == "show" and any(key_of(word) == "run" for word in words)
    reads_eval = command in ("eval", "sample") or is_of_run
    tree = "eval" if reads_eval else "train"
    settings = [setting.key for setting in chosen_settings(tree, words, config_dir)]
    keys = [*default_choices(tree), *settings]
    if command == "sample":
        of_subject = _in_groups(keys, GROUPS_OF_SAMPLED_SUBJECT)
        return list(dict.fromkeys([*KEYS_OF_SAMPLE, *of_subject]))
    if is_of_run:
        return _in_groups(keys, KEYS_OF_SHOWN_RUN)
    if command == "show":
        # A run takes the place of all of them.
        return [*_in_groups(keys, KEYS_OF_INITIAL_MODEL), "run"]
    if command == "bench":
        return [key for key in keys if is_read_by_bench(key)]
    if command in KEYS_OF:
        return _in_groups(keys, KEYS_OF[command])
    return keys


def _in_groups(keys: Iterable[str], groups: Sequence[str]) -> list[str]:
    return [key for key in keys if group_of(key) in groups]


def _values(key: str, value: str, config_dir: str | None) -> list[str]:
    """Return what a value may become. In a list such as `rope,al` the last item is completed."""
    if key == "eval.protocols":
        # The import is for this key alone, since a TAB has to be quick.
        from posenc.evaluation.protocols import protocol_names

        names: Iterable[str] = protocol_names()
    else:
        # `encoding.parts` is a list of encodings.
        names = choice_files(key.replace(".parts", ""), config_dir)
    match = re.match(r".*[\[,]", value)
    finished_items = match.group() if match else ""
    last_item = value.removeprefix(finished_items)
    return [finished_items + name for name in _beginning_with(last_item, names)]


def _beginning_with(typed: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(typed)]
