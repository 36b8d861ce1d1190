"""Define options and arguments that several commands share, with their help and their completion."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

from posenc.config.completion import complete_names, complete_override, complete_run, complete_where
from posenc.core.errors import UserError
from posenc.evaluation.protocols import protocol_names
from posenc.report.chart_kinds import OWN_CAPTION

OptionalText: TypeAlias = str | None
OptionalTexts: TypeAlias = list[str] | None


def option(help: str, *names: str, metavar: str | None = None, complete: Any = None) -> Any:
    """Return an option. Without `names` it has the name of the parameter."""
    return typer.Option(*names, help=help, metavar=metavar, autocompletion=complete)


def argument(metavar: str | None, help: str, complete: Any) -> Any:
    """Return an argument whose help does not show a default."""
    return typer.Argument(metavar=metavar, help=help, show_default=False, autocompletion=complete)


def choice(*names: str, help: str = "") -> Any:
    """Return an option that lists its values in its help, completes them, and refuses others."""

    def check(param: typer.CallbackParam, value: str | None) -> str | None:
        if value is not None and value not in names:
            # Typer's own choices would be answered in its words, without the nearest one.
            raise UserError(param.opts[0], value, "no such choice", allowed=names)
        return value

    *first, last = names
    listed = f"{', '.join(first)} or {last}."
    return typer.Option(help=help or listed, autocompletion=complete_names(*names), callback=check)


def where_option(help: str) -> Any:
    """Return the option `--where KEY=VALUE`, which may be repeated."""
    return option(help, metavar="KEY=VALUE", complete=complete_where)


class CommandWithCaption(TyperCommand):
    """A command whose option `--caption` may come without a text, which Typer's options cannot."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put posenc's own caption after a `--caption` that another option or nothing follows."""
        # Backwards, since each text that is put in moves only the arguments behind it.
        for index, argument in reversed(list(enumerate(args))):
            following = args[index + 1 : index + 2]
            if argument == "--caption" and (not following or following[0].startswith("--")):
                args = [*args[: index + 1], OWN_CAPTION, *args[index + 1 :]]
        return super().parse_args(ctx, args)


Overrides = Annotated[
    OptionalTexts,
    argument(
        "[OVERRIDES]...",
        "Settings KEY=VALUE, as in posenc train; --config-dir DIR adds your own YAML files.",
        complete_override,
    ),
]
SampleSettings = Annotated[
    OptionalTexts,
    argument(
        "KEY=VALUE...",
        "run=DIR, or subject=hf with its settings and extend=NAME; prompt=TEXT (default: a test document), "
        "tokens=N (default: 4T; 64 of subject=hf), temperature=0.8, seed=0",
        complete_override,
    ),
]
Directories = Annotated[
    OptionalTexts,
    argument("[DIRS]...", "Run directories, or folders that hold them; default: runs.", complete_run),
]
Protocol = Annotated[
    str,
    option(
        f"How the loss was measured: {', '.join(protocol_names())} or all.",
        complete=complete_names(*protocol_names(), "all"),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
