"""`posenc train --help` and `posenc eval --help`: examples, choices, settings with their comments."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from posenc.config.conf_text import choices, chosen_settings, config_dir_of, groups, help_texts
from posenc.report.writers import width_of, write

WIDEST = 100
COLUMN = 34  # where comments begin at the latest; behind a longer setting they go below it


def print_help(command: str, arguments: Sequence[str]) -> None:
    """The help on stdout, as wide as it is; settings are those of the choices among the arguments."""
    write(help_text(command, arguments, min(WIDEST, width_of(sys.stdout))), sys.stdout)


def help_text(command: str, arguments: Sequence[str], width: int) -> str:
    """The same as text."""
    overrides = [word for word in arguments if "=" in word and not word.startswith("-")]
    config_dir, texts = config_dir_of(arguments), help_texts(command)
    lines = [*texts["header"].splitlines(), "", "Choices (GROUP=CHOICE)"]
    for group, default in groups(command).items():
        told = f"; default {default}" if default else ""
        lines += _wrapped(f"  {group}: {', '.join(choices(group, config_dir))}{told}", width, "    ")
    lines += ["", "Settings (KEY=VALUE), and what they are when nothing is said"]
    shown = chosen_settings(command, overrides, config_dir)
    words = [f"  {one.key}={one.value.replace(', ', ',').replace(': ', ':')}" for one in shown]
    column = min(max(map(len, words)) + 2, COLUMN)
    for word, one in zip(words, shown, strict=True):
        lines += _beside(word, one.comment, column, width)
    return "\n".join([*lines, "", *texts["footer"].splitlines()]) + "\n"


def _beside(word: str, comment: str, column: int, width: int) -> list[str]:
    """A setting with its comment beside it, or below where it is too long."""
    told = textwrap.wrap(comment, width - column)
    if told and len(word) + 2 > column:
        return [word, *(" " * column + line for line in told)]
    first = word.ljust(column) + told[0] if told else word
    return [first, *(" " * column + line for line in told[1:])]


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)
