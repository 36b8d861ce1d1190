"""Guess which settings are meant by flags of other programs: `--epochs 3`, `--d-model=64`, `--quiet`.

This module imports neither Hydra nor torch, as posenc.config.overrides does not.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from posenc.config.keys_of_commands import KEYS_OF_SAMPLE
from posenc.config.yaml_files import chosen_settings, default_choices
from posenc.core.errors import nearest, suggestion
from posenc.core.foreign_names import instead_of_setting, setting_called

WITH_SETTINGS_HELP = ("train", "eval")  # commands with `--help all`


@dataclass(frozen=True)
class ForeignFlag:
    """Hold a flag that posenc does not have, and its value; None if it came without one."""

    key: str
    value: str | None


def hint_at_flags(command: str, arguments: Sequence[str], unknown: Sequence[str]) -> str:
    """Return the line that was meant, with settings for the unknown flags, or where all settings are listed.

    A flag whose value means another quantity in posenc has a line of its own, and one that is no setting is
    left out.
    """
    words: list[str] = []
    hints: list[str] = []
    for word in _with_values(arguments, unknown):
        if isinstance(word, str):
            words.append(word)
            continue
        meant = _override_of(command, word)
        if meant is None:
            continue
        # What has blanks or quotes is no word of a line, but an
        # explanation, or is quoted for the shell already.
        if " " in meant or "'" in meant:
            hints.append(suggestion(meant))
        else:
            words.append(meant)
    if words:
        hints.append(f"settings are written KEY=VALUE: posenc {command} {shlex.join(words)}")
    if hints:
        return "\n".join(hints)
    if command in WITH_SETTINGS_HELP:
        return f"posenc {command} --help all says what each setting means"
    return f"see posenc {command} --help"


def _with_values(arguments: Sequence[str], unknown: Sequence[str]) -> Iterator[str | ForeignFlag]:
    """Yield the arguments in order, an unknown flag together with its value."""
    remaining = list(arguments)
    while remaining:
        argument = remaining.pop(0)
        if argument not in unknown:
            yield argument
            continue
        flag, equals, written = argument.partition("=")
        value = written if equals else None
        # `--epochs 3` has its value behind a space, `--quiet` has none.
        following = remaining[0] if remaining else "-"
        is_value = "=" not in following and not following.startswith("-")
        if value is None and is_value:
            value = remaining.pop(0)
        yield ForeignFlag(flag.removeprefix("--").replace("-", "_"), value)


def _override_of(command: str, flag: ForeignFlag) -> str | None:
    """Return what to type for a flag: KEY=VALUE, or an explanation; None if it is no setting."""
    # Other tools' names are those of settings of a training, which `sample` has not.
    if command != "sample" and setting_called(command, flag.key) is not None:
        return instead_of_setting(command, flag.key, flag.value)
    keys = _settings_named(command, flag.key)
    if len(keys) > 1:
        return " or ".join(keys)
    value = "true" if flag.value is None else flag.value
    return f"{keys[0]}={value}" if keys else None


def _settings_named(command: str, name: str) -> list[str]:
    """Return the settings of a command with this name, with or without their group."""
    if command == "sample":
        close = nearest(name, KEYS_OF_SAMPLE)
        return [] if close is None else [close]
    tree = "eval" if command == "eval" else "train"
    # A group takes the name of a choice. A group inside a choice, such as `eval.recall`, takes no value.
    keys = [*default_choices(tree), *(setting.key for setting in chosen_settings(tree))]
    if name in keys:
        return [name]
    return [key for key in keys if key.rpartition(".")[2] == name]
