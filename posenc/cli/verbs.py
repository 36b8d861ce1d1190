"""Check the first word of a command line: a command of posenc, or what other tools call it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from posenc.core.errors import UserError, nearest, suggestion
from posenc.core.paths import choice_files

RESUME = "the same command again resumes a run: posenc train with its settings; posenc runs prints it"
# By what to type, before the rest of the line: the verbs of other tools.
VERBS = {
    "train": ("run", "fit", "start", "launch", "pretrain", "finetune"),
    "eval": ("evaluate", "evaluation", "test", "measure", "validate", "extend"),
    "train -m": ("sweep", "multirun", "tune"),
    "train --cfg job": ("config", "cfg"),
    "compare": ("results", "report", "table", "summary", "analyze", "analyse"),
    "compare --plot loss.png": ("plot", "chart", "figure", "graph"),
    "compare --html page.html": ("html", "page"),
    "runs": ("list", "ls", "status", "ps"),
    "runs --delete": ("delete", "rm", "remove", "clean"),
    "encodings": ("encoding", "catalogue", "catalog", "models", "info", "describe"),
    "show": ("draw", "picture", "visualize", "visualise", "view"),
    "check": ("verify", "laws", "lint"),
    "sample": ("generate", "predict", "infer", "inference", "chat"),
    "bench": ("benchmark", "profile", "speed", "time"),
    "data list": ("datasets", "corpora", "dataset", "corpus"),
    "data prepare": ("prepare", "download", "tokenize", "tokenise", "preprocess"),
    "doctor": ("env", "diagnose", "collect_env"),
    "export": ("save", "convert", "push"),
    "--version": ("version",),
}
RESUMING = ("resume", "continue", "restart")


def refuse_wrong_verb(arguments: Sequence[str], commands: Sequence[str], options: Sequence[str]) -> None:
    """Raise UserError if the line begins with no command of posenc, with the line that was meant."""
    if not arguments or arguments[0] in (*commands, *options):
        return
    first, *rest = arguments
    if first.startswith("-"):
        commands_on_line = [word for word in arguments if word in commands]
        if commands_on_line:
            command = commands_on_line[0]
            rest_of_line = [word for word in arguments if word != command]
            line = f"posenc {command} {shlex.join(rest_of_line)}"
            raise _refusal(first, "stands before the command", line)
        return  # an option that does not exist
    if first == "help":
        raise _refusal(first, "is an option of each command", f"posenc {shlex.join([*rest[:1], '--help'])}")
    if first in RESUMING:
        raise UserError(first, None, "there is no such command", hint=RESUME)
    # Somebody left out the command: `posenc encoding=rope`, `posenc rope`, or `posenc rope alibi`.
    names = first.split(",")
    while rest and rest[0] in choice_files("encoding"):
        names.append(rest.pop(0))
    if len(names) > 1 and set(names) <= set(choice_files("encoding")):
        line = shlex.join([f"encoding={','.join(names)}", *rest])
        raise _refusal(first, "is no command", f"posenc train -m {line}")
    if "=" in first or first in choice_files("encoding"):
        setting = first if "=" in first else f"encoding={first}"
        # A line that names a run can only mean to measure it.
        command = "eval" if setting.startswith("run=") else "train"
        raise _refusal(first, "is no command", f"posenc {command} {shlex.join([setting, *rest])}")
    meant = _command_meant(first, commands)
    if meant is None:
        listed = ", ".join(commands)
        raise UserError(first, None, "there is no such command", allowed=listed, hint="posenc --help")
    raise _refusal(first, "there is no such command", f"posenc {meant} {shlex.join(rest)}".rstrip())


def _command_meant(word: str, commands: Sequence[str]) -> str | None:
    """Return the command that a word stands for elsewhere, or that is most like it."""
    # The table comes before likeness: `run` is like `runs`, and means `train`.
    for command, names in VERBS.items():
        if word.casefold() in names:
            return command
    return nearest(word, commands)


def _refusal(word: str, problem: str, line: str) -> UserError:
    """Return the error for a first word, with the line that was meant."""
    return UserError(word, None, problem, hint=suggestion(line))
