"""The command line: one function a command. Imports are inside, so that help is instant."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from typing import Annotated, Any

import typer

from posenc import __version__
from posenc.cli.tools import Debug, Protocol, bench, completion, dashboard, doctor, export, runs
from posenc.core.errors import RunError, UserError
from posenc.core.threads import library_at_work
from posenc.running.signals import (
    InterruptedRunError,
    StopFlag,
    ignore_signals,
    leave_at_a_signal,
    leave_at_once,
)

app = typer.Typer(
    name="posenc",
    help="Train short, test long: compare positional encodings by how they extrapolate in length.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},  # of every command below
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
TAKES_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}
HYDRA: dict[str, Any] = {
    "context_settings": {**TAKES_FLAGS, "help_option_names": []},
    "add_help_option": False,
}
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OVERRIDES]...",
        show_default=False,
        help="KEY=VALUE, as in posenc train; --config-dir DIR adds YAML files of one's own.",
    ),
]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"posenc {__version__}")
        raise typer.Exit


@app.command(**HYDRA)
def train(
    context: typer.Context,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="What it would take; writes nothing.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Train a run that diverged again.")] = False,
    debug: Debug = False,
) -> None:
    """Train, measure at longer lengths, print the table; -m sweeps. See `posenc train --help`."""
    _hydra("train", [*(overrides or []), *context.args], debug, dry_run, retry)


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
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only these runs: encoding=rope,al*  seed=0  train.lr!=0.002"),
    ] = None,
    protocol: Protocol = "fixed-target",
    metric: Annotated[str, typer.Option(help="nats, bpb (bits per byte) or ppl.")] = "nats",
    format: Annotated[str, typer.Option(help="table, markdown, csv, latex or json.")] = "table",
    rows: Annotated[
        list[str] | None, typer.Option(help="Only these rows, in this order: rope,alibi*")
    ] = None,
    columns: Annotated[list[str] | None, typer.Option(help="Only these lengths: 1x,8x")] = None,
    sort: Annotated[
        str | None,
        typer.Option(help="By name, 8x (the loss there), change or change@4x; -8x: highest first."),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="ROW", help="Differences to this row instead of to the loss at T.")
    ] = None,
    facet: Annotated[
        str | None, typer.Option(metavar="KEY", help="A table for each value: context_length, model, ...")
    ] = None,
    extensions: Annotated[str, typer.Option(help="Test-time extensions as rows or as columns.")] = "rows",
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
        str | None,
        typer.Option(
            metavar="TABLE", help="Beside a paper's table, such as alibi-table2; a wrong name lists them."
        ),
    ] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="A picture: .png, .svg or .pdf.")] = None,
    plot_kind: Annotated[
        str | None,
        typer.Option(help="context (if none is said), change, positions, heatmap, training or probes."),
    ] = None,
    plot_width: Annotated[
        float | None, typer.Option(help="Inches: 5.5 if none are said; 3.3 is a column of a paper.")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="One page with charts and tables.")] = None,
    debug: Debug = False,
) -> None:
    """The comparison: rows encodings, columns lengths; from disk, nothing is measured."""
    from posenc.cli.compare import CompareOptions, run_compare

    asked = dict(locals())  # the parameters above are the fields of CompareOptions
    run_compare(CompareOptions(**{name: asked[name] for name in CompareOptions.__dataclass_fields__}))


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
    from posenc.cli.catalogue import print_catalogue

    print_catalogue(name, as_json=json, plugins=plugin or [])


@app.command(context_settings=TAKES_FLAGS)
def check(
    context: typer.Context,
    overrides: Overrides = None,
    every: Annotated[bool, typer.Option("--all", help="Every encoding there is, as a matrix.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    debug: Debug = False,
) -> None:
    """Hold an encoding to the laws: `posenc check encoding=rope`. Exit 1 if one is broken; -m sweeps."""
    from posenc.cli.check import run_check

    raise typer.Exit(run_check([*(overrides or []), *context.args], every=every, as_json=json))


@app.command(context_settings=TAKES_FLAGS)
def show(
    context: typer.Context,
    overrides: Overrides = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write a picture: .png, .svg or .pdf.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Draw what an encoding does: `posenc show encoding=alibi --out alibi.png`; a trained one: run=DIR."""
    from posenc.cli.show import run_show

    raise typer.Exit(run_show([*(overrides or []), *context.args], out))


app.command(context_settings=TAKES_FLAGS)(bench)

data = typer.Typer(help="Corpora: what there is, fetch and tokenise ahead, sizes.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command(name="list")
def data_list(
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False, debug: Debug = False
) -> None:
    """Every corpus that `data=` knows: licence, size, network needed or not, tokens cached here."""
    from posenc.cli.corpora import print_corpora

    print_corpora(as_json=json)


@data.command(name="prepare", context_settings=TAKES_FLAGS)
def data_prepare(context: typer.Context, overrides: Overrides = None, debug: Debug = False) -> None:
    """Fetch and tokenise ahead: `posenc data prepare data=wikitext103 tokenizer=bpe`."""
    from posenc.cli.corpora import prepare_and_print

    prepare_and_print([*(overrides or []), *context.args])


@data.command(name="info", context_settings=TAKES_FLAGS)
def data_info(
    context: typer.Context,
    overrides: Overrides = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    debug: Debug = False,
) -> None:
    """Sizes, fingerprint and what lengths fit: `posenc data info data=stdlib`. Tokenises nothing."""
    from posenc.cli.corpora import print_info

    print_info([*(overrides or []), *context.args], as_json=json)


for tool in (runs, export, doctor, dashboard, completion):
    app.command()(tool)


def _hydra(
    command: str, arguments: list[str], debug: bool, dry_run: bool = False, retry: bool = False
) -> None:
    if {"--help", "-h"} & set(arguments):
        from posenc.cli.help import print_help

        print_help(command, arguments)
        raise typer.Exit
    from posenc.running.command import run_command

    if debug:
        os.environ["HYDRA_FULL_ERROR"] = "1"
    raise typer.Exit(run_command(command, arguments, dry_run=dry_run, retry=retry))


def main(command: str | None = None) -> None:
    """The console script; `command` is put in front for the root doors. Exits."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    arguments = [*([command] if command else []), *sys.argv[1:]]
    if "--debug" in arguments:
        os.environ["HYDRA_FULL_ERROR"] = "1"  # for Hydra, and for the jobs of a sweep
    debug = os.environ.get("HYDRA_FULL_ERROR") == "1"
    if "_POSENC_COMPLETE" in os.environ:  # a TAB in a shell
        from posenc.cli.shells import print_answer

        print_answer(arguments)
        sys.exit()
    atexit.register(ignore_signals)  # the first to be registered is the last to be called
    try:
        with StopFlag() as stop:
            _run(arguments, debug, stop)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if library_at_work():
            leave_at_once(code)
        atexit.register(leave_at_a_signal, code)
        raise


def _run(arguments: list[str], debug: bool, stop: StopFlag) -> None:
    """Exits. Whoever has something to save takes the signals over; anywhere else one ends the command."""
    try:
        app(arguments, prog_name="posenc")
    except (InterruptedRunError, Exception) as error:
        from posenc.running.exits import told_exit_code

        if debug and isinstance(error, UserError | RunError):
            traceback.print_exc()  # and the code of what it is
        elif debug and isinstance(error, Exception):
            raise
        sys.exit(told_exit_code(error, stop))
