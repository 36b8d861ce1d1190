"""Turn the errors of Typer's parser into UserErrors: an option that does not exist, or has no value.

Typer's exceptions and commands are `Any` here: newer versions contain a copy of click, older ones use click.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from posenc.config.overrides import is_group
from posenc.core.errors import UserError, nearest, suggestion
from posenc.core.foreign_names import setting_called

EXTRA_ARGUMENTS = re.compile(r"unexpected extra arguments?(?:\(s\))? \((.*)\)")  # of Typer and click
HELP_IS_PRINTED = "NoArgsIsHelpError"  # Typer raises it for `posenc` and `posenc data` without arguments


def is_usage_error(error: BaseException) -> bool:
    """Tell whether Typer's parser refused the line."""
    # The attributes are asked, since the class is click's or Typer's copy of it, by the version of Typer.
    return hasattr(error, "format_message") and hasattr(error, "ctx")


def is_help_printed(error: BaseException) -> bool:
    """Tell whether Typer has printed the help of a command without arguments."""
    return type(error).__name__ == HELP_IS_PRINTED


def usage_error(error: Any, root: Any, arguments: Sequence[str]) -> UserError:
    """Return the error for a line that Typer refused. `root` is the command `posenc`."""
    command, path = _command_of(root, arguments)
    option = getattr(error, "option_name", None)
    if option is None and hasattr(command, "commands"):
        # `posenc data foo`: two words were understood, so the next one is wrong.
        word = _words_in(arguments)[len(path.split()) - 1]
        unknown = UserError(path, word, "there is no such command", allowed=list(command.commands))
        return unknown.about(f"{path} {word}", None)
    if option is None:
        problem = error.format_message()
        extra = EXTRA_ARGUMENTS.search(problem)
        if extra is not None:
            problem = f"takes fewer arguments, without {extra[1]}"
        return UserError(path, None, problem, hint=f"see {path} --help")
    parameter = next((declared for declared in command.params if option in declared.opts), None)
    if parameter is None:
        return _no_such_option(str(option), command, path)
    # Typer refuses a known option for one of these two reasons.
    problem = "takes no value" if getattr(parameter, "is_flag", False) else "needs a value"
    return UserError(str(option), None, problem, hint=parameter.help or "")


def long_options(command: Any) -> list[str]:
    """Return the options that a command declares, without short forms such as `-h`."""
    names: list[str] = []
    for parameter in command.params:
        names += [name for name in parameter.opts if name.startswith("--")]
    return names


def _command_of(root: Any, arguments: Sequence[str]) -> tuple[Any, str]:
    """Return the command that the first words name, and these words: `posenc data info`."""
    command = root
    path = "posenc"
    for word in _words_in(arguments):
        subcommands = getattr(command, "commands", {})
        if word not in subcommands:
            break
        command = subcommands[word]
        path = f"{path} {word}"
    return command, path


def _words_in(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that are no options: `foo` of `posenc --version foo`."""
    return [argument for argument in arguments if not argument.startswith("-")]


def _no_such_option(option: str, command: Any, path: str) -> UserError:
    """Return the error for an option that a command does not have."""
    offered = long_options(command)
    close = nearest(option, offered)
    key = option.lstrip("-").replace("-", "_")
    # Somebody types `--encoding rope`, as other tools have it.
    setting = key if is_group(key) else setting_called("train", key) or ""
    hint = f"see {path} --help"
    if close is not None:
        hint = suggestion(close)
    elif is_group(setting) and "--where" in offered:
        hint = f"to choose among runs: --where {setting}=..."
    return UserError(option, None, "there is no such option", allowed=", ".join(offered), hint=hint)
