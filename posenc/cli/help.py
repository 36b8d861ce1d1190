"""Write the help in two levels: one screen of what is needed first, and the rest when it is asked for.

`posenc --help` and `posenc train --help` are the screens. `--help all` has everything, and of `train` and
`eval` `--help TOPIC` has a group with its choices and settings, or a setting.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typer.core import TyperGroup

from posenc.config.yaml_files import (
    Setting,
    chosen_settings,
    command_tree,
    config_dir_of,
    default_choices,
    first_sentence,
)
from posenc.core.console import write
from posenc.core.errors import UserError, nearest, suggestion, visible
from posenc.core.paths import choice_file, choice_files, is_folder, missing_path

FLAGS = ("--help", "-h")
ALL = "all"
COMMENT_COLUMN = 34  # the last column where comments may begin; only longer settings push theirs further
FIRST_COLUMN = 31  # of the first screen, whose settings are short
# A group that the first screen names as an example of a topic.
EXAMPLE = {"train": "encoding", "eval": "extend"}
# Settings of the first screen: what a first run needs, in the order in which one asks.
FIRST: dict[str, tuple[str, ...]] = {
    "train": (
        "encoding",
        "model",
        "context_length",
        "data",
        "train.tokens",
        "seed",
        "eval.lengths",
        "device",
        "experiment",
    ),
    "eval": ("run", "eval.lengths", "eval.protocols", "extend", "data", "subject"),
}


# --- posenc --help


class RootGroup(TyperGroup):
    """The command `posenc`, whose help is one screen unless `--help all` asks for Typer's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Typer's own flag takes no word behind it, so the answer is kept for `format_help`.
        if args and args[0] in FLAGS and args[1:2] == [ALL]:
            ctx.meta[ALL] = True
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if ctx.meta.get(ALL):
            super().format_help(ctx, formatter)
        else:  # printed here, as Typer does: nobody prints the formatter of `posenc` without arguments
            write(_root_help(self), sys.stdout)


def _root_help(root: Any) -> str:
    """Return examples, a line for each command, and where the rest is."""
    longest = max(len(name) for name in root.commands)
    lines = [
        root.help,
        "",
        "Examples",
        "  posenc train encoding=rope",
        "  posenc train -m encoding=nope,learned,sinusoidal,rope,alibi,t5 seed=0,1,2",
        "  posenc compare",
        "",
        "Commands",
    ]
    for name, command in root.commands.items():
        # A docstring's first sentence is the line of the command, so that there is one text of it.
        sentence, _, _ = (command.help or "").partition(". ")
        lines.append(f"  {name:<{longest}}  {sentence.strip().removesuffix('.')}")
    lines += ["", "posenc COMMAND --help says what a command takes; posenc --help all: options"]
    return "\n".join(lines) + "\n"


# --- posenc train --help, posenc eval --help


@dataclass(frozen=True)
class HelpRequest:
    """What help of a command is asked for."""

    command: str
    overrides: Sequence[str]
    config_dir: str | None
    width: int


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Tell whether a flag among the arguments asks for help."""
    return any(flag in arguments for flag in FLAGS)


def help_text(command: str, arguments: Sequence[str], width: int) -> str:
    """Return the help of `train` or `eval`: the first screen, everything, or a topic. Raises UserError."""
    config_dir = config_dir_of(arguments)
    # Its choices would be missing, and nothing would say so.
    if config_dir is not None and not is_folder(config_dir):
        raise missing_path("--config-dir", config_dir, "folder")
    request = HelpRequest(
        command=command,
        overrides=[word for word in arguments if "=" in word and not word.startswith("-")],
        config_dir=config_dir,
        width=width,
    )
    topic = _topic_of(arguments)
    if topic == ALL:
        lines = _everything(request)
    elif topic is not None:
        lines = _about(request, topic)
    else:
        lines = _first_screen(request)
    return "\n".join(lines) + "\n"


def _topic_of(arguments: Sequence[str]) -> str | None:
    """Return the word after the flag, if it is no flag and no setting."""
    flag_index = next(index for index, word in enumerate(arguments) if word in FLAGS)
    following = arguments[flag_index + 1 : flag_index + 2]
    if not following:
        return None
    word = following[0]
    is_topic = "=" not in word and not word.startswith("-")
    return word if is_topic else None


def _first_screen(request: HelpRequest) -> list[str]:
    """Return examples, the settings that a first run needs, and the settings of what the overrides choose."""
    command = request.command
    header = command_tree(command)["hydra"]["help"]["header"]
    introduction, examples, more_examples = header.split("\n\n")
    *_, closing = more_examples.splitlines()
    lines = [*introduction.splitlines(), "", *examples.splitlines(), closing]
    lines += ["", "Needed first (KEY=VALUE), with defaults"]
    lines += _aligned(_first_settings(request), request.width, FIRST_COLUMN)
    # Who types `posenc train encoding=alibi --help` wants to know the settings of alibi.
    for group in _chosen_groups(request):
        lines += ["", f"Settings of {group}={_chosen(request)[group]}"]
        lines += _settings(_settings_below(request, group), request.width)
    of_all = f"posenc {command} --help all"
    of_group = f"posenc {command} --help {EXAMPLE[command]}"
    lines += [
        "",
        f"{of_all:<{FIRST_COLUMN}}every choice, setting and option",
        f"{of_group:<{FIRST_COLUMN}}a group: its choices, a line each, and settings",
    ]
    return lines


def _first_settings(request: HelpRequest) -> list[Setting]:
    """Return the first settings; a group's comment is its choices, or how many there are."""
    # Values and comments come from the YAML files, and are written nowhere else.
    by_key = {setting.key: setting for setting in _all_settings(request)}
    choices = default_choices(request.command)
    settings = []
    for key in FIRST[request.command]:
        if key not in choices:
            settings.append(by_key[key])
            continue
        names = choice_files(key, request.config_dir)
        comment = ", ".join(names)
        # The names of forty encodings do not fit into a line.
        if len(comment) > request.width - FIRST_COLUMN:
            comment = f"{len(names)} choices: --help {key}"
        settings.append(Setting(key, str(choices[key] or "null"), comment))
    return settings


def _everything(request: HelpRequest) -> list[str]:
    """Return examples, choices, the settings of the chosen groups with their comments, and options."""
    # hydra.help is Hydra's own place for such texts.
    texts = command_tree(request.command)["hydra"]["help"]
    lines = [*texts["header"].replace("\n\n  posenc", "\n  posenc").splitlines()]
    lines += ["", "Choices (GROUP=CHOICE; --help GROUP says what each is)"]
    for group, default in default_choices(request.command).items():
        line = f"  {group}: {', '.join(choice_files(group, request.config_dir))}"
        if default:
            line += f"; default {default}"
        lines += textwrap.wrap(line, request.width, subsequent_indent="    ", break_on_hyphens=False)
    lines += ["", "Settings (KEY=VALUE) and their defaults"]
    lines += _settings(_all_settings(request), request.width)
    return [*lines, "", *texts["footer"].splitlines()]


def _about(request: HelpRequest, topic: str) -> list[str]:
    """Return the choices of a group, a line each, and its settings; or a setting. Raises UserError."""
    groups = default_choices(request.command)
    settings = _settings_below(request, topic)
    if topic not in groups and not settings:
        raise _no_such_topic(request, topic)
    lines: list[str] = []
    if topic in groups:
        default = "" if groups[topic] is None else f"; default {groups[topic]}"
        lines.append(f"Choices ({topic}=NAME{default})")
        lines += _choices_of(request, topic)
    if settings and lines:
        lines.append("")
    if settings:
        choice = _chosen(request).get(topic)
        head = f"Settings of {topic}={choice}" if choice else "Settings (KEY=VALUE) and their defaults"
        lines.append(head)
        lines += _settings(settings, request.width)
    return lines


def _no_such_topic(request: HelpRequest, topic: str) -> UserError:
    """Return the error for a topic that there is not, with the nearest, or with the choice of this name."""
    groups = default_choices(request.command)
    parts = [setting.key.partition(".")[0] for setting in _all_settings(request)]
    topics = list(dict.fromkeys([ALL, *groups, *parts]))
    line = f"posenc {request.command}"
    close = nearest(topic, topics)
    hint = suggestion(f"{line} --help {close}") if close else f"{line} --help all"
    for group in groups:
        # Somebody asks for `--help alibi`, which is a choice of a group.
        if topic in choice_files(group, request.config_dir):
            hint = suggestion(f"{line} {group}={topic} --help")
    # The hint has a whole line, so that the nearest of what is allowed would only repeat it.
    return UserError(
        "--help", visible(topic), "there is no help on this", allowed=", ".join(topics), hint=hint
    )


def _choices_of(request: HelpRequest, group: str) -> list[str]:
    """Return a line for each choice of a group, with the first sentence of its file."""
    names = choice_files(group, request.config_dir)
    longest = max(len(name) for name in names)
    lines = []
    for name in names:
        path = choice_file(group, name, request.config_dir)
        sentence = "" if path is None else first_sentence(path)
        begin = f"  {name:<{longest}}  "
        margin = " " * len(begin)
        wrapped = textwrap.wrap(sentence, request.width, initial_indent=begin, subsequent_indent=margin)
        # textwrap makes no line of an empty text, and a choice without a comment must not be missing.
        lines += wrapped or [begin.rstrip()]
    return lines


# --- settings


def _all_settings(request: HelpRequest) -> list[Setting]:
    return chosen_settings(request.command, request.overrides, request.config_dir)


def _settings_below(request: HelpRequest, topic: str) -> list[Setting]:
    """Return the settings of a group or of a part of the tree, or the setting itself."""
    return [
        setting
        for setting in _all_settings(request)
        if setting.key == topic or setting.key.startswith(f"{topic}.")
    ]


def _chosen(request: HelpRequest) -> Mapping[str, str]:
    """Return the choice of each group, as the overrides or the defaults have it."""
    chosen = {group: default for group, default in default_choices(request.command).items() if default}
    for override in request.overrides:
        key, _, value = override.partition("=")
        if key in default_choices(request.command):
            chosen[key] = value
    return chosen


def _chosen_groups(request: HelpRequest) -> list[str]:
    """Return the groups that the overrides choose."""
    groups = default_choices(request.command)
    # A group may be chosen twice, of which the last one counts.
    keys = dict.fromkeys(override.partition("=")[0] for override in request.overrides)
    return [key for key in keys if key in groups and _settings_below(request, key)]


def _settings(settings: Sequence[Setting], width: int) -> list[str]:
    """Return settings with their comments in a column of their own."""
    # A long list of values would push the comments of all others out of the terminal.
    longest = max(len(_assignment(setting)) for setting in settings)
    return _aligned(settings, width, min(longest + 2, COMMENT_COLUMN))


def _aligned(settings: Sequence[Setting], width: int, column: int) -> list[str]:
    lines: list[str] = []
    for setting in settings:
        assignment = _assignment(setting)
        begin = f"{assignment}  ".ljust(column)
        commented = textwrap.wrap(
            setting.comment, width, initial_indent=begin, subsequent_indent=" " * column
        )
        lines += commented or [assignment]
    return lines


def _assignment(setting: Setting) -> str:
    """Return a setting as one types it; values of YAML files have spaces, which an override may not have."""
    return f"  {setting.key}={setting.value.replace(', ', ',').replace(': ', ':')}"
