"""The words of a command line: flags, and overrides KEY=VALUE.

Imports neither Hydra nor torch: it runs at every TAB.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

from posenc.core.console import say
from posenc.core.errors import UserError, nearest, visible
from posenc.core.foreign_names import setting_called
from posenc.core.paths import conf_dir, exists, expanded, is_folder

COMMON_FLAGS = ("--multirun", "--config-dir", "--debug", "--help")  # of every command that takes settings
HYDRAS_FLAGS = ("--multirun", "--cfg", "--config-dir", "--info", "--debug", "--help", "--hydra-help")
NOT_FOR_POSENC = ("config_name", "config_path", "experimental_rerun")  # Hydra's options
TAKES_NAMES = ("show", "check", "bench")  # a bare name chooses an encoding
NAME_OF_RUN = re.compile(r"[\w.+-]+-[0-9a-f]{8}", re.ASCII)
HOW_TO_WRITE = "settings are written KEY=VALUE: encoding=rope, seed=1"
# Settings that are paths: quoted for Hydra, whose grammar reads neither `~/x` nor `läufe`.
PATHS = ("run", "runs_dir", "data.paths", "data.separator", "tokenizer.path", "subject.path", "train.init")
PLAIN = re.compile(r"[A-Za-z_][\w.+-]*", re.ASCII)  # Hydra reads it as the text that it is
SINGLE_WORD = re.compile(r"[\w.+-]*/[\w./+-]*", re.ASCII)  # Hydra reads it as one word, and as no number
# Values that are written in Hydra's own grammar: interpolations, quoted texts, glob(...), choice(...).
HYDRAS_GRAMMAR = re.compile(r"\$\{|(^|[\[,])\s*['\"]|^(glob|choice)\(")


@dataclass(frozen=True)
class CommandLine:
    """What Hydra's own parser makes of the arguments."""

    overrides: list[str]
    flags: list[str] = field(default_factory=list)  # the other arguments
    multirun: bool = False
    config_dir: str | None = None
    asks_hydra: bool = False  # --cfg, --info, --help and the like: print something, run nothing


def parse(arguments: list[str], command: str = "train", command_flags: Collection[str] = ()) -> CommandLine:
    """Split flags from overrides. `command_flags` are those that the command itself has taken already.

    Raises UserError for what cannot be combined, and for a flag that does not exist, with the nearest.
    """
    from posenc.config.hydra_adapter import argument_parser

    # Hydra's own parser, so that whatever its documentation says of flags holds here
    parser = argument_parser(_refuse)
    hydras = HYDRAS_FLAGS if command in ("train", "eval") else COMMON_FLAGS
    offered = sorted({*hydras, *command_flags})
    long_flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    _refuse_unknown_flag(command, arguments, long_flags, offered)
    _refuse_split_list(arguments)
    words = [_checked_word(word) for word in arguments]
    parsed = parser.parse_intermixed_args(words)  # flags may stand between overrides
    if parsed.multirun and parsed.cfg:
        raise UserError("--cfg", parsed.cfg, "cannot be combined with --multirun", hint="leave out -m")
    for name in NOT_FOR_POSENC:
        value = getattr(parsed, name, None)
        if value:
            hint = "--config-dir DIR adds YAML files of your own"
            raise UserError(f"--{name.replace('_', '-')}", value, "is not for posenc", hint=hint)
    _check_repeated(parsed.overrides)
    return CommandLine(
        overrides=[with_paths_quoted(override) for override in parsed.overrides],
        flags=[word for word in words if word not in parsed.overrides],
        multirun=bool(parsed.multirun),
        config_dir=parsed.config_dir,
        asks_hydra=any((parsed.help, parsed.hydra_help, parsed.cfg, parsed.info, parsed.shell_completion)),
    )


def _checked_word(word: str) -> str:
    """Return an argument; expand the `~` of `--config-dir=~/x`, which shells leave. Raises UserError."""
    if any("\ud800" <= character <= "\udfff" for character in word):
        raise UserError(visible(word), None, "is not UTF-8, and settings are kept as text")
    flag, _, value = word.partition("=")
    return f"{flag}={expanded(value)}" if flag == "--config-dir" and value else word


def _refuse_unknown_flag(
    command: str, arguments: Sequence[str], long_flags: Sequence[str], offered: Sequence[str]
) -> None:
    """Raise UserError for a flag that does not exist, with the nearest, or with the setting that is meant."""
    unknown = [word for word in arguments if _is_unknown_flag(word, long_flags)]
    if not unknown:
        return
    flag = unknown[0].partition("=")[0]
    close = nearest(flag, offered)
    hint = f"did you mean: {close}\n{HOW_TO_WRITE}"
    if close is None:
        line = shlex.join(_with_settings(command, arguments, unknown))
        hint = f"settings are written KEY=VALUE: posenc {command} {line}"
    raise UserError(flag, None, "there is no such option", allowed=", ".join(offered), hint=hint)


def _is_unknown_flag(word: str, long_flags: Sequence[str]) -> bool:
    flag = word.partition("=")[0]
    return flag.startswith("--") and not any(known.startswith(flag) for known in long_flags)


def _with_settings(command: str, arguments: Sequence[str], unknown: Sequence[str]) -> list[str]:
    """Return the arguments with `--key value` and `--key=value` of other programs written as `key=value`."""
    words: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word not in unknown:
            words.append(word)
            continue
        flag, equals, value = word.partition("=")
        has_value_behind = bool(rest) and "=" not in rest[0] and not rest[0].startswith("-")
        if not equals:
            value = rest.pop(0) if has_value_behind else "true"
        key = flag.removeprefix("--").replace("-", "_")
        words.append(f"{setting_called(command, key) or key}={value}")
    return words


def _refuse_split_list(arguments: Sequence[str]) -> None:
    """Raise UserError for a list that a shell has split at its spaces: `eval.lengths=[1x, 16x]`."""
    for number, word in enumerate(arguments):
        if "=" not in word or not _is_open(word):
            continue
        for end in range(number + 2, len(arguments) + 1):
            joined = "".join(arguments[number:end])
            if not _is_open(joined):
                hint = f"quote it, without spaces: '{joined}'"
                raise UserError(word, None, "is a list that the shell has split at a space", hint=hint)


def _is_open(text: str) -> bool:
    """Tell whether a bracket or brace is opened and not closed."""
    return text.count("[") > text.count("]") or text.count("{") > text.count("}")


def _check_repeated(overrides: Sequence[str]) -> None:
    """Refuse two choices of one group: `encoding=rope encoding=alibi`. Of a setting the last one counts.

    That is Hydra's way, which scripts use to append to a line, but it is said.
    """
    last: dict[str, str] = {}
    for override in overrides:
        key = key_of(override)
        before = last.get(key, override)
        last[key] = override
        if before == override or is_hydras(override) or "=" not in override:
            continue
        if is_group(key):
            choices = f"{before.partition('=')[2]},{override.partition('=')[2]}"
            hint = f"leave out one; for a sweep: -m {key}={choices}"
            raise UserError(override, None, f"stands beside {before}, and only one can be chosen", hint=hint)
        if os.environ.get("RANK", "0") == "0":  # under torchrun the first process speaks for all
            say(f"{visible(before)} has no effect: the last one counts, {visible(override)}")


def is_group(key: str) -> bool:
    """Tell whether a key names a group of choices, such as `encoding`."""
    return bool(key) and is_folder(conf_dir() / key)


def _refuse(message: str) -> NoReturn:
    raise UserError("arguments", None, message, hint=HOW_TO_WRITE)


def read_settings_line(command: str, arguments: list[str], command_flags: Collection[str]) -> CommandLine:
    """Parse the line of a command that takes settings but runs no job of Hydra's. Raises UserError."""
    line = parse(arguments, command, command_flags)
    if command in TAKES_NAMES:
        line = replace(line, overrides=_with_names(command, line.overrides))
    if line.asks_hydra:
        raise UserError(command, None, "prints no configuration", hint="posenc train --cfg job does")
    if line.multirun:
        hint = "leave it out: check and bench take encoding=rope,alibi as it is"
        raise UserError("-m", None, "is for posenc train and eval", hint=hint)
    return line


def _with_names(command: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides with bare names as the encoding, or the run, that they choose: `show rope`."""
    names = [word for word in overrides if "=" not in word and not word.startswith(("+", "~"))]
    if not names:
        return list(overrides)
    settings = [word for word in overrides if word not in names]
    if command == "show" and all(_is_run(name) for name in names):
        chosen = f"run={','.join(quoted(name) for name in names)}"
    else:
        chosen = f"encoding={','.join(names)}"
    _check_repeated([*settings, chosen])
    return [chosen, *settings]


def _is_run(name: str) -> bool:
    return bool(NAME_OF_RUN.fullmatch(name)) or is_folder(name)


def key_of(override: str) -> str:
    """Return the key: `seed` of `seed=0,1`, of `+seed=0` and `++seed=0`, of `~seed`."""
    return override.lstrip("+~").partition("=")[0]


def group_of(key: str) -> str:
    """Return the group: `encoding` of `encoding.base` and of `encoding@_global_`."""
    return re.split(r"[./@]", key)[0]


def is_hydras(override: str) -> bool:
    """Tell whether an override sets Hydra's own part: `hydra.verbose=true`, `hydra/launcher=slurm`."""
    return key_of(override).startswith(("hydra.", "hydra/"))


def refuse_others(line: CommandLine, groups: Collection[str], what: str, hint: str = "") -> None:
    """Raise UserError for a setting of any other group: it would have no effect on `what`."""
    for override in line.overrides:
        key = key_of(override)
        if not is_hydras(override) and group_of(key) not in groups:
            allowed = ", ".join(sorted(groups))
            raise UserError(key, None, f"has no effect on {what}", allowed=allowed, hint=hint)


def with_paths_quoted(override: str) -> str:
    """Quote the paths in an override for Hydra's grammar: `~/x`, `läufe`, `a (1)`.

    Commas separate the values of a sweep, unless there is a file of that name; `data.paths` may be a list.
    """
    key, _, value = override.partition("=")
    is_hydras_grammar = value in ("", "[]", "null") or HYDRAS_GRAMMAR.search(value)
    if key_of(override) not in PATHS or is_hydras_grammar:
        return override
    is_list = key == "data.paths" and value.startswith("[") and value.endswith("]")
    inside = value[1:-1] if is_list else value
    parts = [inside] if exists(inside) else inside.split(",")
    joined = ",".join(quoted(part.strip()) for part in parts)
    return f"{key}=[{joined}]" if is_list else f"{key}={joined}"


def quoted(value: str) -> str:
    """Quote a value for Hydra's grammar, unless the grammar reads it as one word.

    Hydra takes a backslash literally unless it stands before a quote.
    """
    if SINGLE_WORD.fullmatch(value):
        return value
    escaped = re.sub(r"(\\*)('|\Z)", _escaped_quote, value)
    return f"'{escaped}'"


def _escaped_quote(match: re.Match[str]) -> str:
    """Double the backslashes before a quote, or before the end, and escape the quote."""
    return 2 * match[1] + ("\\'" if match[2] else "")


def value_text(value: Any) -> str:
    """Return a value of Python's in Hydra's grammar. Raises UserError for what YAML cannot hold."""
    if isinstance(value, Integral) and not isinstance(value, bool):  # NumPy's too
        return json.dumps(int(value))
    if isinstance(value, Real) and not isinstance(value, bool):
        return json.dumps(float(value))
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(value_text(item) for item in value)}]"
    if isinstance(value, Mapping):
        items = ",".join(f"{key}:{value_text(item)}" for key, item in value.items())
        return "{" + items + "}"
    if isinstance(value, str | Path):
        return str(value) if PLAIN.fullmatch(str(value)) else quoted(str(value))
    raise UserError("overrides", value, f"cannot be a setting ({type(value).__name__})")
