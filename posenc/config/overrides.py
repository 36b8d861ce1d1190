"""The words of a command line: flags and overrides KEY=VALUE parsed, described for help, completed at a TAB.

Imports neither Hydra nor torch: it runs at every TAB.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

import typer
import yaml

from posenc.core.errors import UserError, nearest, visible
from posenc.core.paths import choice_file, choice_files, conf_dir, expanded
from posenc.evaluation import PROTOCOLS

COMMON = ("--multirun", "--config-dir", "--debug", "--help")  # of every command that takes settings
HYDRA_COMMANDS = ("--multirun", "--cfg", "--config-dir", "--info", "--debug", "--help", "--hydra-help")
WRITTEN = "settings are written KEY=VALUE: encoding=rope, seed=1"
# Settings that are paths: quoted for Hydra, whose grammar reads no `~/x` and no `läufe`
PATHS = ("run", "runs_dir", "data.paths", "data.separator", "tokenizer.path", "subject.path", "train.init")
PLAIN = re.compile(r"[A-Za-z_][\w.+-]*", re.ASCII)  # Hydra reads it as the text that it is
ONE_WORD = re.compile(r"[\w.+-]*/[\w./+-]*", re.ASCII)  # Hydra reads it as one word, and as no number
# A line of a YAML file
LINE = re.compile(
    r"(?P<indent> *)(?P<key>[A-Za-z_][\w-]*):(?: +(?P<value>[^#\s].*?))?(?: +# *(?P<comment>.*))?"
)


@dataclass(frozen=True)
class CommandLine:
    """What Hydra's own parser makes of the arguments."""

    overrides: list[str]
    flags: list[str] = field(default_factory=list)  # the other arguments
    multirun: bool = False
    config_dir: str | None = None
    asks_hydra: bool = False  # --cfg, --info, --help and the like: print something, run nothing


def parse(arguments: list[str], command: str = "train", own: Collection[str] = ()) -> CommandLine:
    """Split Hydra's flags from overrides. `own`: flags of the command that are taken already.

    Raises UserError for what cannot be combined, and for a flag that is not there, with the nearest.
    """
    from posenc.config.hydra_adapter import argument_parser

    parser = argument_parser(_refuse)
    known = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    offered = sorted({*(HYDRA_COMMANDS if command in ("train", "eval") else COMMON), *own})
    written = []
    for word in arguments:
        if any("\ud800" <= sign <= "\udfff" for sign in word):
            raise UserError(visible(word), None, "is not UTF-8, and settings are kept as text")
        flag, _, value = word.partition("=")
        if flag.startswith("--") and not any(one.startswith(flag) for one in known):
            close = nearest(flag, offered)
            hint = f"did you mean: {close}\n{WRITTEN}" if close else WRITTEN
            raise UserError(flag, None, "there is no such option", allowed=", ".join(offered), hint=hint)
        # a shell leaves a ~ behind it as it is
        written.append(f"{flag}={expanded(value)}" if flag == "--config-dir" and value else word)
    args = parser.parse_intermixed_args(written)  # flags may stand between overrides
    if args.multirun and args.cfg:
        raise UserError("--cfg", args.cfg, "cannot be combined with --multirun", hint="leave out -m")
    for name in ("config_name", "config_path", "experimental_rerun"):
        if given := getattr(args, name, None):
            hint = "--config-dir DIR adds YAML files of your own"
            raise UserError(f"--{name.replace('_', '-')}", given, "is not for posenc", hint=hint)
    return CommandLine(
        overrides=[as_written(override) for override in args.overrides],
        flags=[word for word in written if word not in args.overrides],
        multirun=bool(args.multirun),
        config_dir=args.config_dir,
        asks_hydra=any((args.help, args.hydra_help, args.cfg, args.info, args.shell_completion)),
    )


def _refuse(message: str) -> NoReturn:
    raise UserError("arguments", None, message, hint=WRITTEN)


def read_settings_line(command: str, arguments: list[str], own: Collection[str]) -> CommandLine:
    """Parse the line of a command that takes settings but runs no job of Hydra's. Raises UserError."""
    line = parse(arguments, command, own)
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
    """Return whether it sets Hydra's own part: `hydra.verbose=true`, `hydra/launcher=slurm`."""
    return key_of(override).startswith(("hydra.", "hydra/"))


def refuse_others(line: CommandLine, groups: Collection[str], what: str, hint: str = "") -> None:
    """Raise UserError for a setting of any other group: it would have no effect on `what`."""
    for override in line.overrides:
        key = key_of(override)
        if not is_hydras(override) and group_of(key) not in groups:
            allowed = ", ".join(sorted(groups))
            raise UserError(key, None, f"has no effect on {what}", allowed=allowed, hint=hint)


def as_written(override: str) -> str:
    """Quote the paths of an override: `~/x`, `läufe`, `a (1)`.

    Commas separate the values of a sweep, unless there is a file of that name; `data.paths` may be a list.
    """
    key, _, value = override.partition("=")
    of_hydra = value in ("", "[]", "null") or re.search(r"\$\{|(^|[\[,])\s*['\"]|^(glob|choice)\(", value)
    if key_of(override) not in PATHS or of_hydra:
        return override
    is_list = key == "data.paths" and value.startswith("[") and value.endswith("]")
    inside = value[1:-1] if is_list else value
    parts = [inside] if os.path.exists(expanded(inside)) else inside.split(",")  # noqa: PTH110 (too long)
    listed = ",".join(quoted(part.strip()) for part in parts)
    return f"{key}=[{listed}]" if is_list else f"{key}={listed}"


def quoted(value: str) -> str:
    """Quote a value for Hydra's grammar, unless it is one word of it and no number.

    Hydra takes a backslash literally unless it stands before a quote.
    """
    if ONE_WORD.fullmatch(value):
        return value
    escaped = re.sub(r"(\\*)('|\Z)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return f"'{escaped}'"


def value_text(value: Any) -> str:
    """Return a value of Python's in Hydra's grammar. Raises UserError for what is none of YAML's."""
    if isinstance(value, Integral | Real) and not isinstance(value, bool | int | float):  # NumPy's
        value = int(value) if isinstance(value, Integral) else float(value)
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(value_text, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{value_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, str | Path):
        return str(value) if PLAIN.fullmatch(str(value)) else quoted(str(value))
    raise UserError("overrides", value, f"cannot be a setting ({type(value).__name__})")


# --- the YAML tree as text: settings with their comments


@dataclass(frozen=True)
class Setting:
    """A key, its default as it stands in the YAML ("" where a list follows), and the comment beside it."""

    key: str
    value: str
    comment: str


def settings_of(path: Path, prefix: str = "") -> list[Setting]:
    """Return the leaves of a YAML file, in order, without a group's `name` and without Hydra's own part."""
    found: list[Setting] = []
    above: list[tuple[int, str]] = []  # indent and name of the keys that a line lies in
    for line in path.read_text(encoding="utf-8").splitlines():
        match = LINE.fullmatch(line.rstrip())
        if match is None:
            continue
        indent, key = len(match["indent"]), match["key"]
        above = [(depth, name) for depth, name in above if depth < indent] + [(indent, key)]
        dotted = ".".join(name for _, name in above)
        if above[0][1] in ("defaults", "hydra") or (dotted == "name" and prefix):
            continue
        value, comment = match["value"] or "", match["comment"] or ""
        if value or comment or key == "exclude":
            found.append(Setting(f"{prefix}{dotted}", value, comment))
    sections = {setting.key.rpartition(".")[0] for setting in found}
    return [setting for setting in found if setting.key not in sections]


def command_tree(command: str) -> dict[str, Any]:
    """Return `conf/COMMAND.yaml` as data."""
    tree: dict[str, Any] = yaml.safe_load((conf_dir() / f"{command}.yaml").read_text(encoding="utf-8"))
    return tree


def groups(command: str) -> dict[str, str | None]:
    """Return the groups of a command and their default choices (None: nothing chosen), in order."""
    entries = [entry for entry in command_tree(command)["defaults"] if isinstance(entry, dict)]
    pairs = [(str(key), value) for entry in entries for key, value in entry.items()]
    return {key: value for key, value in pairs if not key.startswith("override ")}


def chosen_settings(
    command: str, overrides: Iterable[str] = (), config_dir: str | None = None
) -> list[Setting]:
    """Return every setting of a command: its own, then those of the groups as the overrides choose them."""
    picked = {key_of(override): override.partition("=")[2] for override in overrides}
    # for what is null in `posenc eval`
    usual = settings_of(conf_dir() / "eval" / "default.yaml", "eval.")
    comments = {setting.key: setting.comment for setting in usual}
    own = settings_of(conf_dir() / f"{command}.yaml")
    found = [Setting(one.key, one.value, one.comment or comments.get(one.key, "")) for one in own]
    for group, default in groups(command).items():
        path = choice_file(group, picked.get(group, default), config_dir)
        if path is not None and group != "experiment":
            found += settings_of(path, f"{group}.")
    return found


def config_dir_of(arguments: Sequence[str]) -> str | None:
    """Return the folder after `--config-dir`, where there is one."""
    for i, word in enumerate(arguments):
        name, _, value = word.partition("=")
        if name in ("--config-dir", "-cd"):
            return value or next(iter(arguments[i + 1 :]), None)
    return None


# --- at a TAB


def one_of(*names: str) -> Callable[[str], list[str]]:
    """Return a hook of Typer's that completes to one of these names."""
    return lambda incomplete: _fitting(names, incomplete)


def complete_table(incomplete: str) -> list[str]:
    from posenc.report.against import tables

    return _fitting(tables(), incomplete)


def complete_encoding(incomplete: str) -> list[str]:
    return _fitting(choice_files("encoding"), incomplete)


def complete_where(incomplete: str) -> list[str]:
    keys = [*groups("train"), *(setting.key for setting in chosen_settings("train"))]
    return _fitting((f"{key}=" for key in keys), incomplete)


def complete_run(incomplete: str) -> list[str]:
    """Return run directories below what was typed, or below `runs`."""
    place = Path(incomplete or "runs")
    start = place if place.is_dir() else place.parent
    found = [path.parent for depth in range(4) for path in start.glob("*/" * depth + "status.json")]
    return _fitting(sorted(map(str, found)), incomplete)


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return keys (`train.lr=`), groups and values; in bash, which breaks words at `=`, what follows it."""
    words, kept = list(ctx.params.get("overrides") or []), 0
    if "COMP_WORDS" in os.environ:
        at = int(os.environ["COMP_CWORD"])
        typed = os.environ["COMP_WORDS"].split()[: at + 1]
        line = re.sub(r" ?= ?", "=", " ".join([*typed, ""] if len(typed) <= at else typed))
        *words, incomplete = line.split(" ")
        kept = incomplete.rfind("=") + 1
    return [found[kept:] for found in candidates(str(ctx.info_name), words, incomplete)]


def candidates(command: str, words: Sequence[str], incomplete: str) -> list[str]:
    """Return the overrides that `incomplete` may become, behind `words`, with the choices of a single key.

    So a TAB never ends behind `=`, where a shell would put a space.
    """
    tree, config_dir = "eval" if command == "eval" else "train", config_dir_of(words)
    key, equals, value = incomplete.partition("=")
    if not equals:
        keys = [*groups(tree), *(setting.key for setting in chosen_settings(tree, words, config_dir))]
        if command in ("prepare", "info"):  # of `posenc data`
            keys = [one for one in keys if one.startswith(("data", "tokenizer"))]
        found = _fitting((f"{one}=" for one in keys), key)
        return candidates(command, words, found[0]) or found if len(found) == 1 else found
    if key == "run":
        return [f"run={one}" for one in complete_run(value)]
    listed = PROTOCOLS if key == "eval.protocols" else choice_files(key.replace(".parts", ""), config_dir)
    begun, last = re.fullmatch(r"(.*[\[,])?(.*)", value).groups()  # type: ignore[union-attr]
    return [f"{key}={begun or ''}{one}" for one in _fitting(listed, last)]


def _fitting(listed: Iterable[str], begun: str) -> list[str]:
    return [one for one in listed if one.startswith(begun)]
