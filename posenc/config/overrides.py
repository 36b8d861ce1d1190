"""Split the arguments of a command line into flags and overrides KEY=VALUE.

This module imports neither Hydra nor torch, as it runs at every TAB.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

from posenc.config.foreign_flags import hint_at_flags
from posenc.config.keys import group_of, is_hydras, key_of
from posenc.core.console import say
from posenc.core.errors import UserError, nearest, suggestion, visible
from posenc.core.paths import choice_files, conf_dir, exists, expanded, is_folder
from posenc.core.torchrun import is_another_process

# The flags of every command that takes settings, and those of `posenc train` and `posenc eval`.
COMMON_FLAGS = ("--multirun", "--config-dir", "--debug", "--help")
HYDRAS_FLAGS = ("--multirun", "--cfg", "--config-dir", "--info", "--debug", "--help", "--hydra-help")
OWN_YAML = "--config-dir DIR adds YAML files of your own"
# By option of Hydra's parser that posenc does not offer: what to type instead.
UNSUPPORTED_OPTIONS = {
    "config_name": OWN_YAML,
    "config_path": OWN_YAML,
    "experimental_rerun": OWN_YAML,
    "version": "the version of posenc: posenc --version",
    "run": "leave it out: without -m a line is one job",
    "shell_completion": "posenc --install-completion",
}
NEEDS_CFG = ("package", "resolve")  # Hydra reads them beside --cfg, and ignores them otherwise
TAKE_BARE_NAMES = ("show", "check", "bench")  # commands where a bare name chooses an encoding
GROUP_NAME = re.compile(r"[a-z_]+(/[a-z_]+)?")  # `encoding`, `hydra/launcher`; no path of the user's
NAME_OF_RUN = re.compile(r"[\w.+-]+-[0-9a-f]{8}", re.ASCII)
HOW_TO_WRITE = "settings are written KEY=VALUE: encoding=rope, seed=1"
# Settings that are paths or names. They are quoted for Hydra, whose grammar reads neither `~/x` nor `läufe`.
LISTS_OF_PATHS = ("data.paths", "plugins")
NAMES = ("name", "experiment_name")
PLAIN_NAMES = re.compile(r"[\w.+,-]*", re.ASCII)  # Hydra reads them, null and numbers too
QUOTED_KEYS = (
    *LISTS_OF_PATHS,
    "run",
    "runs_dir",
    *NAMES,
    "data.repository",
    "data.task",
    "tokenizer.path",
    "subject.path",
    "subject.tokenizer",
    "subject.runs_dir",
    "train.init",
    "eval.key_tokens",
    "eval.ruler.essays",
)
FILE_OF_ENCODING = re.compile(r"\.py(:\w+)?$")  # the end of `encoding=~/mine.py:Mine`
SEPARATOR = "data.separator"  # a text, in which white space and commas count
# Texts that Hydra reads as they are.
PLAIN_TEXT = re.compile(r"[A-Za-z_][\w.+-]*", re.ASCII)
PLAIN_PATH = re.compile(r"[\w.+-]*/[\w./+-]*", re.ASCII)  # the slash keeps it from being a number
QUOTED_PATH = re.compile(r"'([^'\\]*)'")  # without quotes or backslashes inside, as most paths are
SHORT_FLAG = re.compile(r"-[A-Za-z]")
WRONG_FLAG = re.compile(r"argument (?P<flag>--?[\w-]+)\S*: (?P<problem>.+)", re.DOTALL)
# Values that are written in Hydra's own grammar: interpolations, quoted texts, glob(...), choice(...).
HYDRAS_GRAMMAR = re.compile(r"\$\{|(^|[\[,])\s*['\"]|^(glob|choice)\(")


@dataclass(frozen=True)
class CommandLine:
    """Hold the arguments of a command as Hydra's own parser splits them."""

    overrides: list[str]
    flags: list[str] = field(default_factory=list)  # all arguments that are not overrides
    multirun: bool = False
    config_dir: str | None = None
    asks_hydra: bool = False  # --cfg, --info, --help and the like print something and run nothing


def parse(arguments: list[str], command: str = "train", command_flags: Collection[str] = ()) -> CommandLine:
    """Split flags from overrides. `command_flags` are flags that the command itself has taken already.

    Raises UserError for flags that cannot be combined, and for one that does not exist, with the nearest.
    """
    # Imported here, since --help and TAB read this module, too, and do not wait for Hydra.
    from posenc.config.hydra_adapter import argument_parser

    # Hydra's own parser, so that whatever its documentation says of flags holds here
    parser = argument_parser(_refuse)
    hydras_flags = HYDRAS_FLAGS if command in ("train", "eval") else COMMON_FLAGS
    offered_flags = sorted({*hydras_flags, *command_flags})
    known_flags = list(parser._option_string_actions)
    _refuse_unknown_flag(command, arguments, known_flags, offered_flags)
    # Hydra would complain of `[1x,` alone, and not say that a shell has cut it.
    _refuse_split_list(arguments)
    _refuse_split_values(arguments)
    checked = [_check_argument(argument) for argument in arguments]
    parsed = parser.parse_intermixed_args(checked)  # flags may stand between overrides
    if parsed.multirun and parsed.cfg:
        raise UserError("--cfg", parsed.cfg, "cannot be combined with --multirun", hint="leave out -m")
    _refuse_unsupported(command, vars(parsed), offered_flags)
    _check_repeated(parsed.overrides)
    return CommandLine(
        overrides=[quote_paths(override) for override in parsed.overrides],
        flags=[argument for argument in checked if argument not in parsed.overrides],
        multirun=bool(parsed.multirun),
        config_dir=parsed.config_dir,
        asks_hydra=any((parsed.help, parsed.hydra_help, parsed.cfg, parsed.info)),
    )


def _check_argument(argument: str) -> str:
    """Return an argument, with the `~` of `--config-dir=~/x` expanded. Raises UserError."""
    # Python decodes bytes that are not UTF-8 to characters of this range
    if any("\ud800" <= character <= "\udfff" for character in argument):
        raise UserError(visible(argument), None, "is not UTF-8, and settings are kept as text")
    flag, _, value = argument.partition("=")
    if flag == "--config-dir" and value:  # shells expand `~` only where a word begins with it
        return f"{flag}={expanded(value)}"
    return argument


def _refuse_unknown_flag(
    command: str, arguments: Sequence[str], known_flags: Sequence[str], offered_flags: Sequence[str]
) -> None:
    """Raise UserError for a flag that does not exist, with the nearest, or with the setting that is meant."""
    unknown = [argument for argument in arguments if _is_unknown_flag(argument, known_flags)]
    if not unknown:
        return
    flag = unknown[0].partition("=")[0]
    close = nearest(flag, offered_flags)
    hint = f"{suggestion(close)}\n{HOW_TO_WRITE}"
    if close is None:
        hint = hint_at_flags(command, arguments, unknown)
    raise UserError(flag, None, "there is no such option", allowed=", ".join(offered_flags), hint=hint)


def _refuse_unsupported(command: str, parsed: Mapping[str, Any], offered_flags: Sequence[str]) -> None:
    """Raise UserError for an option that Hydra's parser takes, and posenc does not or would ignore."""
    allowed = ", ".join(offered_flags)
    for name, hint in UNSUPPORTED_OPTIONS.items():
        if parsed.get(name):
            flag, value = _flag_and_value(name, parsed[name])
            raise UserError(flag, value, "is not for posenc", allowed=allowed, hint=hint)
    for name in NEEDS_CFG:
        if parsed.get(name) and not parsed["cfg"]:
            flag, value = _flag_and_value(name, parsed[name])
            typed = flag if value is None else f"{flag} {value}"
            hint = f"posenc {command} --cfg job {typed}"
            raise UserError(flag, value, "has an effect beside --cfg only", hint=hint)


def _flag_and_value(name: str, value: object) -> tuple[str, object]:
    """Return an option as it is typed, and its value; None for an option that takes none."""
    return f"--{name.replace('_', '-')}", None if value is True else value


def _is_unknown_flag(argument: str, known_flags: Sequence[str]) -> bool:
    flag = argument.partition("=")[0]
    if flag.startswith("--"):
        # the parser also takes the beginning of a flag
        return not any(known.startswith(flag) for known in known_flags)
    # `-m`, and `-cjob` with its value
    short_flags = [known for known in known_flags if not known.startswith("--")]
    return SHORT_FLAG.match(flag) is not None and not flag.startswith(tuple(short_flags))


def _refuse_split_list(arguments: Sequence[str]) -> None:
    """Raise UserError for a list that a shell has split at its spaces: `eval.lengths=[1x, 16x]`."""
    for begin, argument in enumerate(arguments):
        if "=" not in argument or not _has_open_bracket(argument):
            continue
        # The list ends with the first word that closes the bracket. What stands behind it are other settings.
        for end in range(begin + 2, len(arguments) + 1):
            joined = "".join(arguments[begin:end])
            if not _has_open_bracket(joined):
                hint = f"quote it, without spaces: '{joined}'"
                raise UserError(argument, None, "is a list that the shell has split at a space", hint=hint)


def _refuse_split_values(arguments: Sequence[str]) -> None:
    """Raise UserError for values that a shell has split at their spaces: `encoding=rope, alibi`."""
    for begin, argument in enumerate(arguments[:-1]):
        is_cut = "=" in argument and argument.endswith(",") and key_of(argument) != SEPARATOR
        if not is_cut or "=" in arguments[begin + 1] or arguments[begin + 1].startswith("-"):
            continue
        joined = argument
        for word in arguments[begin + 1 :]:
            joined += word
            if not word.endswith(","):
                break
        raise UserError(
            argument, None, "has a space behind a comma", hint=f"without it: {shlex.quote(joined)}"
        )


def _has_open_bracket(text: str) -> bool:
    """Tell whether a bracket or brace is opened and not closed."""
    open_brackets = text.count("[") - text.count("]")
    open_braces = text.count("{") - text.count("}")
    return open_brackets > 0 or open_braces > 0


def _check_repeated(overrides: Sequence[str]) -> None:
    """Raise UserError for two choices of one group: `encoding=rope encoding=alibi`."""
    earlier_overrides: dict[str, str] = {}  # by key
    for override in overrides:
        key = key_of(override)
        earlier = earlier_overrides.get(key, override)
        earlier_overrides[key] = override
        if earlier == override or is_hydras(override) or "=" not in override:
            continue
        if is_group(key):
            choices = f"{earlier.partition('=')[2]},{override.partition('=')[2]}"
            hint = f"leave out one; for a sweep: -m {key}={choices}"
            raise UserError(override, None, f"stands beside {earlier}, and only one can be chosen", hint=hint)
        # other keys may be repeated, as with Hydra alone: scripts append overrides to a line
        if not is_another_process():
            say(f"{visible(earlier)} has no effect: the last one counts, {visible(override)}")


def is_group(key: str) -> bool:
    """Tell whether a key names a group of choices, such as `encoding`."""
    # The form is asked first: `../x` would be a folder, too.
    return GROUP_NAME.fullmatch(key) is not None and is_folder(conf_dir() / key)


def _refuse(message: str) -> NoReturn:
    """Raise UserError for what the parser says of a flag: `argument --cfg/-c: invalid choice: 'jobs'`."""
    of_flag = WRONG_FLAG.fullmatch(message)
    key = of_flag["flag"] if of_flag else "arguments"
    problem = of_flag["problem"] if of_flag else message
    raise UserError(key, None, problem, hint=HOW_TO_WRITE)


def read_settings_line(command: str, arguments: list[str], command_flags: Collection[str]) -> CommandLine:
    """Parse the line of a command that takes settings but does not train or evaluate. Raises UserError."""
    line = parse(arguments, command, command_flags)
    if command in TAKE_BARE_NAMES:
        line = replace(line, overrides=_name_to_choice(command, line.overrides))
    if line.asks_hydra:
        raise UserError(command, None, "prints no configuration", hint="posenc train --cfg job does")
    if line.multirun:
        hint = "leave it out: check and bench take encoding=rope,alibi as it is"
        raise UserError("-m", None, "is for posenc train and eval", hint=hint)
    return line


def _name_to_choice(command: str, overrides: Sequence[str]) -> list[str]:
    """Return the overrides with bare names, as in `show rope`, replaced by choices of encodings or runs."""
    names = [text for text in overrides if "=" not in text and not text.startswith(("+", "~"))]
    if not names:
        return list(overrides)
    settings = [text for text in overrides if text not in names]
    if command == "show" and all(_is_run(name) for name in names):
        choice = f"run={','.join(quote(name) for name in names)}"
    else:
        choice = quote_paths(f"encoding={','.join(names)}")
    _check_repeated([*settings, choice])
    return [choice, *settings]


def _is_run(name: str) -> bool:
    return bool(NAME_OF_RUN.fullmatch(name)) or is_folder(name)


def refuse_others(line: CommandLine, groups: Collection[str], what: str, hint: str = "") -> None:
    """Raise UserError for a setting that is in none of the groups: it would have no effect on `what`."""
    for override in line.overrides:
        key = key_of(override)
        if is_hydras(override) or group_of(key) in groups:
            continue
        allowed = ", ".join(sorted(groups))
        close = nearest(group_of(key), groups)
        # A slip of the fingers is no setting without an effect.
        if close is not None and not is_group(group_of(key)):
            meant = suggestion(close + override.removeprefix(group_of(key)))
            raise UserError(key, None, "there is no such setting", allowed=allowed, hint=meant)
        choice = None if "=" in override else _nearest_choice(override, groups)
        if choice is not None:
            hint = suggestion(choice)
        raise UserError(key, None, f"has no effect on {what}", allowed=allowed, hint=hint)


def _nearest_choice(name: str, groups: Iterable[str]) -> str | None:
    """Return the choice that a bare name means: `data=sympy` for `sympy`, or for a slip of it."""
    for group in groups:
        choice = nearest(name, choice_files(group))
        if choice is not None:
            return f"{group}={choice}"
    return None


def quote_paths(override: str) -> str:
    """Quote the paths in an override for Hydra's grammar: `~/x`, `läufe`, `a (1)`, and `data.separator`.

    Commas separate the values of a sweep, unless there is a file of that name; some settings may be lists.
    """
    key, equals, value = override.partition("=")
    written = f"{key}{equals}"
    setting = key_of(override)
    is_plain = value not in ("", "[]", "null") and not HYDRAS_GRAMMAR.search(value)
    # A separator may be `\n` or a comma, and is never a list of values.
    if is_plain and setting == SEPARATOR:
        return f"{written}{quote(value)}"
    is_file = setting == "encoding" and FILE_OF_ENCODING.search(value) is not None
    if not is_plain or not (is_file or setting in QUOTED_KEYS):
        return override
    if setting in NAMES and PLAIN_NAMES.fullmatch(value):
        return override
    if setting in LISTS_OF_PATHS and value.startswith("[") and value.endswith("]"):
        lists = value[1:-1].split("],[")  # several are the values of a sweep
        quoted_lists = []
        for paths in lists:
            quoted_paths = _quoted(paths) if paths else ""
            quoted_lists.append(f"[{quoted_paths}]")
        return f"{written}{','.join(quoted_lists)}"
    return f"{written}{_quoted(value)}"


def as_typed(override: str) -> str:
    """Return an override without the quotes that `quote_paths` gave it, for a command to be typed again."""
    unquoted = QUOTED_PATH.sub(r"\1", override)
    # Other quotes stay: typed again without them it would be another override.
    return unquoted if quote_paths(unquoted) == override else override


def _quoted(paths: str) -> str:
    """Quote each of the paths that commas separate, unless there is a file of that whole name."""
    separate = [paths] if exists(paths) else paths.split(",")
    return ",".join(quote(path.strip()) for path in separate)


def quote(value: str) -> str:
    """Quote a value for Hydra's grammar, unless Hydra reads it as it is.

    Hydra takes a backslash literally unless it stands before a quote.
    """
    if PLAIN_PATH.fullmatch(value):
        return value
    escaped = re.sub(r"(\\*)('|\Z)", _escaped_quote, value)
    return f"'{escaped}'"


def _escaped_quote(match: re.Match[str]) -> str:
    """Return backslashes before a quote, or before the end, doubled, and the quote escaped."""
    backslashes, quote_mark = match.groups()
    escaped_mark = "\\'" if quote_mark else ""
    return backslashes + backslashes + escaped_mark


def unquoted(value: str) -> str:
    """Return the value that `quote` was given, or a user who quoted it for Hydra."""
    quote_mark = value[:1]
    is_quoted = len(value) > 1 and quote_mark in ("'", '"') and value.endswith(quote_mark)
    if not is_quoted:
        return value
    # Hydra halves the backslashes before a quote and before the end, and takes all others literally.
    return re.sub(rf"(\\+)({quote_mark}|\Z)", _halved_backslashes, value[1:-1])


def _halved_backslashes(match: re.Match[str]) -> str:
    """Return half of the backslashes, without the one that escapes a quote, and the quote."""
    backslashes, quote_mark = match.groups()
    return "\\" * (len(backslashes) // 2) + quote_mark


def value_text(value: Any) -> str:
    """Return a Python value in Hydra's grammar. Raises UserError for a value that YAML cannot hold."""
    if isinstance(value, Integral) and not isinstance(value, bool):  # NumPy's too
        return json.dumps(int(value))
    # json writes `1e-05`, which Hydra's grammar takes for a number. A
    # bool is a number in Python, and comes below.
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
        return str(value) if PLAIN_TEXT.fullmatch(str(value)) else quote(str(value))
    raise UserError("overrides", value, f"cannot be a setting ({type(value).__name__})")
