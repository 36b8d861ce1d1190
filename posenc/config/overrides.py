"""A command line with overrides: flags, Hydra's and posenc's, and what is overridden."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, NoReturn

from posenc.core.errors import UserError, nearest, visible

OFFERED = (
    *("--multirun", "--dry-run", "--retry", "--cfg", "--config-dir", "--info", "--debug"),
    *("--help", "--hydra-help"),
)
PLAIN = re.compile(r"[\w.+-]*/[\w./+-]*", re.ASCII)  # what Hydra reads as one word, and as no number
COMMON = ("--multirun", "--config-dir", "--debug", "--help")  # of every command that takes settings
TRAINS = ("--dry-run", "--retry")  # of `posenc train` alone


@dataclass(frozen=True)
class CommandLine:
    """What Hydra's own parser makes of the arguments."""

    overrides: list[str]
    multirun: bool
    config_dir: str | None
    asks_hydra: bool  # --cfg, --info, --help and the like: print something, run nothing
    prints_config: bool  # --cfg


def parse(arguments: list[str]) -> CommandLine:
    """Split Hydra's flags from overrides. Raises UserError for unknown flags."""
    from hydra._internal.utils import get_args_parser

    for word in arguments:
        if not word.isprintable() and any("\ud800" <= sign <= "\udfff" for sign in word):
            raise UserError(visible(word), None, "is not UTF-8, and settings are kept as text")
    parser = get_args_parser()
    parser.error = _wrong_flag  # type: ignore[method-assign]
    args = parser.parse_intermixed_args(arguments)  # flags may stand between overrides
    asks = any((args.help, args.hydra_help, args.cfg, args.info, args.shell_completion))
    if args.multirun and args.cfg:
        raise UserError("--cfg", args.cfg, "cannot be combined with --multirun", hint="leave out -m")
    if args.run and (args.cfg or args.info):
        raise UserError("--run", None, "cannot be combined with --cfg or --info", hint="leave it out")
    for flag in ("config_name", "config_path", "experimental_rerun"):
        if getattr(args, flag, None):
            shown = f"--{flag.replace('_', '-')}"
            hint = "--config-dir DIR adds YAML files of your own"
            raise UserError(shown, getattr(args, flag), "is not for posenc", hint=hint)
    for flag in ("resolve", "package"):
        if getattr(args, flag) and not (args.cfg or args.help):
            raise UserError(f"--{flag}", None, "goes with --cfg", hint=f"--cfg job --{flag}")
    return CommandLine(list(args.overrides), bool(args.multirun), args.config_dir, asks, args.cfg is not None)


def key_of(override: str) -> str:
    """`seed` of `seed=0,1`, of `+seed=0` and `++seed=0`, of `~seed`."""
    return override.lstrip("+~").partition("=")[0]


def group_of(key: str) -> str:
    """`encoding` of `encoding.base` and of `encoding@_global_`."""
    return re.split(r"[./@]", key)[0]


def refuse_others(line: CommandLine, keys: Collection[str], problem: str) -> None:
    """Raises UserError for a setting of none of these groups: it would have no effect."""
    for override in line.overrides:
        key = key_of(override)
        if not is_hydras(override) and group_of(key) not in keys:
            raise UserError(key, None, problem, allowed=sorted(keys))


def quoted(value: str) -> str:
    """A value as Hydra reads it back: quoted, unless it is one word of its grammar and no number.

    Hydra takes a backslash as one unless it stands before a quote.
    """
    if PLAIN.fullmatch(value):
        return value
    escaped = re.sub(r"(\\*)('|\Z)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return f"'{escaped}'"


def is_hydras(override: str) -> bool:
    """Whether it is of Hydra's own part: `hydra.verbose=true`, `hydra/launcher=joblib`."""
    return key_of(override).startswith(("hydra.", "hydra/"))


def refuse_unknown_flags(command: str, arguments: list[str]) -> None:
    """Raises UserError, naming the nearest one, for a flag that neither Hydra nor posenc has."""
    from hydra._internal.utils import get_args_parser

    known = [flag for flag in get_args_parser()._option_string_actions if flag.startswith("--")]
    offered = [flag for flag in OFFERED if command == "train" or flag not in TRAINS]
    if command not in ("train", "eval"):
        offered = [*COMMON]
    for word in arguments:
        flag = word.partition("=")[0]
        if flag.startswith("--") and not any(one.startswith(flag) for one in known):
            if flag in TRAINS:
                raise UserError(flag, None, "is an option of posenc train alone", allowed=", ".join(offered))
            offered = sorted({*offered, *_own_options(command)})
            close = nearest(flag, offered)
            hint = f"did you mean: {close}\n" if close else ""
            hint += "settings are written KEY=VALUE: encoding=rope, seed=1"
            raise UserError(flag, None, "there is no such option", allowed=", ".join(offered), hint=hint)


def _own_options(command: str) -> list[str]:
    """Those that `posenc COMMAND` declares."""
    from typer.main import get_command

    from posenc.cli import app

    declared: Any = getattr(get_command(app), "commands", {}).get(command)
    params = [] if declared is None else declared.params
    return [name for param in params for name in param.opts if name.startswith("--")]


def _wrong_flag(message: str) -> NoReturn:
    raise UserError("arguments", None, message, hint="settings are written KEY=VALUE: encoding=rope, seed=1")
