"""The words of a command line: flags, and overrides KEY=VALUE.

Imports neither Hydra nor torch: it runs at every TAB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

from posenc.core.errors import UserError, nearest, visible
from posenc.core.paths import exists, expanded

COMMON_FLAGS = ("--multirun", "--config-dir", "--debug", "--help")  # of every command that takes settings
HYDRAS_FLAGS = ("--multirun", "--cfg", "--config-dir", "--info", "--debug", "--help", "--hydra-help")
NOT_FOR_POSENC = ("config_name", "config_path", "experimental_rerun")  # Hydra's options
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
    words = [_checked_word(word, long_flags, offered) for word in arguments]
    parsed = parser.parse_intermixed_args(words)  # flags may stand between overrides
    if parsed.multirun and parsed.cfg:
        raise UserError("--cfg", parsed.cfg, "cannot be combined with --multirun", hint="leave out -m")
    for name in NOT_FOR_POSENC:
        value = getattr(parsed, name, None)
        if value:
            hint = "--config-dir DIR adds YAML files of your own"
            raise UserError(f"--{name.replace('_', '-')}", value, "is not for posenc", hint=hint)
    return CommandLine(
        overrides=[with_paths_quoted(override) for override in parsed.overrides],
        flags=[word for word in words if word not in parsed.overrides],
        multirun=bool(parsed.multirun),
        config_dir=parsed.config_dir,
        asks_hydra=any((parsed.help, parsed.hydra_help, parsed.cfg, parsed.info, parsed.shell_completion)),
    )


def _checked_word(word: str, long_flags: Iterable[str], offered: list[str]) -> str:
    """Return an argument; expand the `~` of `--config-dir=~/x`, which shells leave. Raises UserError."""
    if any("\ud800" <= character <= "\udfff" for character in word):
        raise UserError(visible(word), None, "is not UTF-8, and settings are kept as text")
    flag, _, value = word.partition("=")
    if flag.startswith("--") and not any(known.startswith(flag) for known in long_flags):
        close = nearest(flag, offered)
        hint = f"did you mean: {close}\n{HOW_TO_WRITE}" if close else HOW_TO_WRITE
        raise UserError(flag, None, "there is no such option", allowed=", ".join(offered), hint=hint)
    return f"{flag}={expanded(value)}" if flag == "--config-dir" and value else word


def _refuse(message: str) -> NoReturn:
    raise UserError("arguments", None, message, hint=HOW_TO_WRITE)


def read_settings_line(command: str, arguments: list[str], command_flags: Collection[str]) -> CommandLine:
    """Parse the line of a command that takes settings but runs no job of Hydra's. Raises UserError."""
    line = parse(arguments, command, command_flags)
    if line.asks_hydra:
        raise UserError(command, None, "prints no configuration", hint="posenc train --cfg job does")
    if line.multirun:
        hint = "leave it out: check and bench take encoding=rope,alibi as it is"
        raise UserError("-m", None, "is for posenc train and eval", hint=hint)
    return line


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
