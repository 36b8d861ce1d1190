"""The command line: one function a command. Imports are inside, so that help is instant."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from posenc import __version__

if TYPE_CHECKING:
    from posenc.results.records import Metric

app = typer.Typer(
    name="posenc",
    help="Train short, test long: compare positional encodings by how they extrapolate in length.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog=(
        "[b]Examples[/b]\n\n"
        "posenc train encoding=rope\n\n"
        "posenc train -m encoding=nope,learned,sinusoidal,rope,alibi,t5 seed=0,1,2\n\n"
        "posenc compare --format markdown"
    ),
)

# Everything behind these commands belongs to Hydra: overrides, -m, --cfg job, --config-dir, --help.
HYDRA: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    "add_help_option": False,
}
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[OVERRIDES]...", show_default=False)]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"posenc {__version__}")
        raise typer.Exit


@app.command(**HYDRA)
def train(context: typer.Context, overrides: Overrides = None, debug: Debug = False) -> None:
    """Train, measure at longer lengths, print the table; -m sweeps. See `posenc train --help`."""
    _hydra("train", [*(overrides or []), *context.args], debug)


@app.command(name="eval", **HYDRA)
def evaluate(context: typer.Context, overrides: Overrides = None, debug: Debug = False) -> None:
    """Measure a run again: other lengths, protocols or corpora. See `posenc eval --help`."""
    _hydra("eval", [*(overrides or []), *context.args], debug)


@app.command()
def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DIRS]...", help="Run directories, folders of them, or globs; default: runs"),
    ] = None,
    protocol: Annotated[str, typer.Option(help="How the loss was measured.")] = "fixed-target",
    metric: Annotated[str, typer.Option(help="nats, bpb (bits per byte) or ppl.")] = "nats",
    format: Annotated[str, typer.Option(help="table, markdown, csv or json.")] = "table",
    length: Annotated[
        str | None, typer.Option(help="The targets that were measured at this multiple of T, such as 16x.")
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="Measured on this corpus.")] = None,
    split: Annotated[str | None, typer.Option(help="test or validation.")] = None,
    stride: Annotated[int | None, typer.Option(help="Of the protocol sliding, in tokens.")] = None,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Put runs of different settings in one table.")
    ] = False,
    against: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Beside a paper's table, such as alibi-table2.")
    ] = None,
    debug: Debug = False,
) -> None:
    """The comparison: rows encodings, columns lengths."""
    from posenc.report.failures import failures_lines
    from posenc.report.table import show
    from posenc.results.comparison import compare as compare_runs
    from posenc.results.load import load_runs
    from posenc.results.selection import only, parse_multiple

    multiple = None if length is None else parse_multiple(length)
    loaded = only(load_runs(runs or ["runs"]), length=multiple, corpus=corpus, split=split, stride=stride)
    if against is not None:
        if (protocol, metric) != ("fixed-target", "nats"):
            from posenc.errors import UserError

            raise UserError("--against", against, "chooses protocol and unit by the paper's table itself")
        from posenc.report.against import show_against
        from posenc.results.against import against as beside

        show_against(beside(loaded, against, allow_mixed), format, sys.stdout)
    else:
        show(compare_runs(loaded, protocol, cast("Metric", metric), allow_mixed), format, sys.stdout)
    for line in failures_lines(loaded):
        typer.echo(line, err=True)


@app.command()
def encodings(
    name: Annotated[str | None, typer.Argument(help="One encoding; all of them without.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="MODULE", help="A module with encodings of your own."),
    ] = None,
    debug: Debug = False,
) -> None:
    """The catalogue: formula, where it acts, paper, behaviour past the training length."""
    from posenc.jobs.catalogue import print_catalogue

    print_catalogue(name, as_json=json, plugins=plugin or [])


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def check(
    context: typer.Context,
    overrides: Overrides = None,
    every: Annotated[bool, typer.Option("--all", help="Every encoding there is, as a matrix.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    debug: Debug = False,
) -> None:
    """Hold an encoding to the laws: `posenc check encoding=rope`. Exit 1 if one is broken; -m sweeps."""
    from posenc.jobs.check import run_check

    raise typer.Exit(run_check([*(overrides or []), *context.args], every=every, as_json=json))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def show(
    context: typer.Context,
    overrides: Overrides = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write a picture: .png, .svg or .pdf.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Draw what an encoding does: `posenc show encoding=alibi --out alibi.png`; a trained one: run=DIR."""
    from posenc.jobs.show import run_show

    raise typer.Exit(run_show([*(overrides or []), *context.args], out))


data = typer.Typer(help="Corpora: what there is, fetch and tokenise ahead, sizes.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command(name="list")
def data_list() -> None:
    """Every corpus that `data=` knows."""
    from posenc.jobs.corpora import print_corpora

    print_corpora()


@data.command(name="prepare")
def data_prepare(overrides: Overrides = None, debug: Debug = False) -> None:
    """Fetch and tokenise ahead: `posenc data prepare data=wikitext103 tokenizer=bpe`."""
    from posenc.jobs.corpora import prepare_and_print

    prepare_and_print(overrides or [])


@data.command(name="info")
def data_info(overrides: Overrides = None, debug: Debug = False) -> None:
    """Documents, bytes and fingerprint: `posenc data info data=stdlib`. Tokenises nothing."""
    from posenc.jobs.corpora import print_info

    print_info(overrides or [])


def _hydra(command: str, arguments: list[str], debug: bool) -> None:
    from posenc.jobs.launch import run_command

    if debug:
        os.environ["HYDRA_FULL_ERROR"] = "1"

    raise typer.Exit(run_command(command, arguments))


def main(command: str | None = None) -> None:
    """The console script; `command` is put in front for the root doors. Exits."""
    arguments = [*([command] if command else []), *sys.argv[1:]]
    if "--debug" in arguments:
        os.environ["HYDRA_FULL_ERROR"] = "1"  # for Hydra, and for the jobs of a sweep
    debug = os.environ.get("HYDRA_FULL_ERROR") == "1"
    try:
        app(arguments, prog_name="posenc")
    except Exception as error:
        from posenc.errors import RunError, UserError

        if debug:
            raise
        if isinstance(error, UserError | RunError):
            print(error.text(), file=sys.stderr)
            sys.exit(error.exit_code)
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        print("  this is a fault of posenc; --debug shows where", file=sys.stderr)
        sys.exit(1)
