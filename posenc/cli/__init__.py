"""The command line: one function a command. Imports are inside, so that help is instant."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from typing import Annotated, Any

import typer

from posenc import __version__
from posenc.cli.completion import (
    complete_encoding,
    complete_override,
    complete_run,
    complete_table,
    complete_where,
    one_of,
)
from posenc.core.console import library_at_work
from posenc.core.errors import RunError, UserError
from posenc.evaluation import PROTOCOLS
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
data_app = typer.Typer(help="Corpora: what there is, fetch and tokenise ahead, sizes.", no_args_is_help=True)

# Commands whose other arguments are overrides: KEY=VALUE, -m, --config-dir.
TAKES_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}
SETTINGS: dict[str, Any] = {"context_settings": TAKES_FLAGS}
HYDRA: dict[str, Any] = {  # these print a help of their own
    "context_settings": {**TAKES_FLAGS, "help_option_names": []},
    "add_help_option": False,
}

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[OVERRIDES]...",
        show_default=False,
        help="KEY=VALUE, as in posenc train; --config-dir DIR adds YAML files of one's own.",
        autocompletion=complete_override,
    ),
]
Dirs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DIRS]...",
        help="Run directories, folders of them, or globs; default: runs",
        autocompletion=complete_run,
    ),
]
Protocol = Annotated[
    str,
    typer.Option(
        help=f"How the loss was measured: {', '.join(PROTOCOLS)}.", autocompletion=one_of(*PROTOCOLS)
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]  # read by main


def _choice(*names: str, help: str) -> Any:
    return typer.Option(help=help, autocompletion=one_of(*names))


def _where(help: str) -> Any:
    return typer.Option(metavar="KEY=VALUE", help=help, autocompletion=complete_where)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"posenc {__version__}")
        raise typer.Exit


@app.command(name="train", **HYDRA)
def train_command(
    context: typer.Context,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="What it would take; writes nothing.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Train a run that diverged again.")] = False,
    debug: Debug = False,
) -> None:
    """Train, measure at longer lengths, print the table; -m sweeps. See `posenc train --help`."""
    from posenc.cli.train import run_train_or_eval

    words = [*(overrides or []), *context.args]
    raise typer.Exit(run_train_or_eval("train", words, own_flags(context), dry_run=dry_run, retry=retry))


@app.command(name="eval", **HYDRA)
def eval_command(context: typer.Context, overrides: Overrides = None, debug: Debug = False) -> None:
    """Measure a run again: other lengths, protocols or corpora. See `posenc eval --help`."""
    from posenc.cli.train import run_train_or_eval

    words = [*(overrides or []), *context.args]
    raise typer.Exit(run_train_or_eval("eval", words, own_flags(context), dry_run=False, retry=False))


@app.command(name="compare")
def compare_command(
    runs: Dirs = None,
    where: Annotated[
        list[str] | None, _where("Only these runs: encoding=rope,al*  seed=0  train.lr!=0.002")
    ] = None,
    protocol: Protocol = "fixed-target",
    metric: Annotated[str, _choice("nats", "bpb", "ppl", help="nats, bpb (bits per byte) or ppl.")] = "nats",
    format: Annotated[
        str,
        _choice("table", "markdown", "csv", "latex", "json", help="table, markdown, csv, latex or json."),
    ] = "table",
    per: Annotated[
        str | None,
        _choice("cell", "seed", "document", help="With --format csv, a line per cell, seed or document."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Every number with its interval; seeds, probes, notes.")
    ] = False,
    explain: Annotated[bool, typer.Option("--explain", help="How to read the table.")] = False,
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
    extensions: Annotated[
        str, _choice("rows", "columns", help="Test-time extensions as rows or as columns.")
    ] = "rows",
    length: Annotated[
        str | None, typer.Option(help="The targets that were measured at this multiple of T, such as 16x.")
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="Measured on this corpus.")] = None,
    split: Annotated[str | None, _choice("test", "validation", help="test or validation.")] = None,
    stride: Annotated[int | None, typer.Option(help="Of the protocol sliding, in tokens.")] = None,
    allow_mixed: Annotated[
        bool, typer.Option("--allow-mixed", help="Put runs of different settings in one table.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Beside a paper's table, such as alibi-table2; a wrong name lists them.",
            autocompletion=complete_table,
        ),
    ] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="A picture: .png, .svg or .pdf.")] = None,
    plot_kind: Annotated[
        str | None,
        _choice(
            *("context", "change", "positions", "heatmap", "training", "probes"),
            help="context (the default), change, positions, heatmap, training or probes.",
        ),
    ] = None,
    plot_width: Annotated[
        float | None, typer.Option(help="Inches; default 5.5; 3.3 is a column of a paper.")
    ] = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="One page with charts and tables.")] = None,
    debug: Debug = False,
) -> None:
    """The comparison: rows encodings, columns lengths; from disk, nothing is measured."""
    from posenc.cli.compare import CompareOptions, run_compare

    given = dict(locals())  # the parameters above are the fields of CompareOptions
    run_compare(CompareOptions(**{name: given[name] for name in CompareOptions.__dataclass_fields__}))


@app.command(name="encodings")
def encodings_command(
    name: Annotated[
        str | None,
        typer.Argument(help="One encoding; all of them without.", autocompletion=complete_encoding),
    ] = None,
    json: Json = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option("--plugin", metavar="MODULE", help="A module with encodings of your own."),
    ] = None,
    debug: Debug = False,
) -> None:
    """The catalogue: formula, where it acts, paper, behaviour past the training length."""
    from posenc.cli.catalogue import print_catalogue

    print_catalogue(name, as_json=json, plugins=plugin or [])


@app.command(name="check", **SETTINGS)
def check_command(
    context: typer.Context,
    overrides: Overrides = None,
    every: Annotated[bool, typer.Option("--all", help="Every encoding there is, as a matrix.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Hold an encoding to the laws: `posenc check encoding=rope`. Exit 1 if one is broken; -m sweeps."""
    from posenc.cli.check import run_check

    raise typer.Exit(run_check(_line(context, overrides), every=every, as_json=json))


@app.command(name="show", **SETTINGS)
def show_command(
    context: typer.Context,
    overrides: Overrides = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write a picture: .png, .svg or .pdf.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Draw what an encoding does: `posenc show encoding=alibi --out alibi.png`; a trained one: run=DIR."""
    from posenc.cli.show import run_show

    run_show(_line(context, overrides), out)


@app.command(name="bench", **SETTINGS)
def bench_command(
    context: typer.Context,
    overrides: Overrides = None,
    eval_lengths: Annotated[
        str, typer.Option(help="Evaluate at these lengths, such as 1x,8x or 512; none: only train.")
    ] = "8x",
    repeats: Annotated[int, typer.Option(help="Pairs of timings for each figure.")] = 9,
    format: Annotated[
        str, _choice("table", "markdown", "csv", "json", help="table, markdown, csv or json.")
    ] = "table",
    debug: Debug = False,
) -> None:
    """Speed, memory and MFU: `posenc bench encoding=rope,alibi context_length=64,512`. Reads no corpus."""
    from posenc.cli.bench import run_bench

    line = _line(context, overrides)
    raise typer.Exit(run_bench(line, repeats=repeats, lengths=eval_lengths, format=format))


@data_app.command(name="list")
def data_list(json: Json = False, debug: Debug = False) -> None:
    """Every corpus that `data=` knows: licence, size, network needed or not, tokens cached here."""
    from posenc.cli.data import print_corpora

    print_corpora(as_json=json)


@data_app.command(name="prepare", **SETTINGS)
def data_prepare(context: typer.Context, overrides: Overrides = None, debug: Debug = False) -> None:
    """Fetch and tokenise ahead: `posenc data prepare data=wikitext103 tokenizer=bpe`."""
    from posenc.cli.data import prepare_and_print

    prepare_and_print(_line(context, overrides))


@data_app.command(name="info", **SETTINGS)
def data_info(
    context: typer.Context, overrides: Overrides = None, json: Json = False, debug: Debug = False
) -> None:
    """Sizes, fingerprint and what lengths fit: `posenc data info data=stdlib`. Tokenises nothing."""
    from posenc.cli.data import print_info

    print_info(_line(context, overrides), as_json=json)


app.add_typer(data_app, name="data")


@app.command(name="runs")
def runs_command(
    directories: Dirs = None,
    where: Annotated[
        list[str] | None, _where("Only runs with this setting; all of them, where several.")
    ] = None,
    format: Annotated[str, _choice("table", "json", help="table or json.")] = "table",
    sort: Annotated[
        str,
        _choice(
            *("path", "status", "encoding", "seed", "age", "tokens", "speed", "loss", "longest"),
            help="path, status, encoding, seed, age, tokens, speed, loss or longest.",
        ),
    ] = "path",
    reverse: Annotated[bool, typer.Option("--reverse", help="The other way round.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Look again every two seconds, until nothing has run for half a minute."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """What is on disk: status, progress, speed, losses, and why something failed."""
    from posenc.cli.runs import print_runs

    paths = directories or ["runs"]
    code = print_runs(paths, where=where or [], format=format, sort=sort, reverse=reverse, watch=watch)
    raise typer.Exit(code)


@app.command(name="export")
def export_command(
    directories: Dirs = None,
    out: Annotated[
        str, typer.Option(metavar="FILE", help="The bundle: NAME.runs.jsonl.gz")
    ] = "runs.runs.jsonl.gz",
    where: Annotated[list[str] | None, _where("Only runs with this setting.")] = None,
    debug: Debug = False,
) -> None:
    """The results of finished runs in one small file, without weights, for `posenc compare FILE` anywhere."""
    from posenc.cli.runs import run_export

    run_export(directories or ["runs"], where or [], out)


@app.command(name="doctor")
def doctor_command(json: Json = False, debug: Debug = False) -> None:
    """Is everything there that posenc needs? Exit 1 if something stops `posenc train encoding=rope`."""
    from posenc.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(as_json=json))


@app.command(name="dashboard")
def dashboard_command(
    entity: Annotated[str | None, typer.Option(help="User or team; default: the account's own.")] = None,
    project: Annotated[str | None, typer.Option(help="Default: the one that runs are tracked in.")] = None,
    protocol: Protocol = "fixed-target",
    length: Annotated[str, typer.Option(help="The bars: at this multiple of T.")] = "8x",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print its JSON, send nothing.")] = False,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write its JSON, send nothing.")] = None,
    debug: Debug = False,
) -> None:
    """Add a view to W&B that compares encodings, and print its address."""
    from posenc.cli.dashboard import make_dashboard

    make_dashboard(entity, project, protocol=protocol, length=length, dry_run=dry_run, out=out)


@app.command(name="completion")
def completion_command(
    shell: Annotated[
        str | None,
        typer.Argument(
            help="bash, zsh or fish; default: this one.", autocompletion=one_of("bash", "zsh", "fish")
        ),
    ] = None,
    install: Annotated[bool, typer.Option("--install", help="Put it where the shell finds it.")] = False,
    debug: Debug = False,
) -> None:
    """Completion of commands, settings and values at a TAB: prints the script, or installs it."""
    from posenc.cli.completion import print_completion

    print_completion(shell, install)


def own_flags(context: typer.Context) -> list[str]:
    """Return the options that the command itself declares."""
    return [name for param in context.command.params for name in param.opts if name.startswith("--")]


def _line(context: typer.Context, overrides: list[str] | None) -> Any:
    """Parse the overrides of a command that composes settings but runs no job of Hydra's."""
    from posenc.config.overrides import read_settings_line

    words = [*(overrides or []), *context.args]
    return read_settings_line(str(context.info_name), words, own_flags(context))


def main(command: str | None = None) -> None:
    """Run the console script and exit; `command` is put in front for train.py and eval.py of a clone."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    arguments = [*([command] if command else []), *sys.argv[1:]]
    if "--debug" in arguments:
        os.environ["HYDRA_FULL_ERROR"] = "1"  # for Hydra, and for the jobs of a sweep
    debug = os.environ.get("HYDRA_FULL_ERROR") == "1"
    if "_POSENC_COMPLETE" in os.environ:  # a TAB in a shell
        from posenc.cli.completion import answer_tab

        answer_tab(app)
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
    """Run the command and exit; whatever has something to save takes the signals over, else one ends it."""
    try:
        app(arguments, prog_name="posenc")
    except (InterruptedRunError, Exception) as error:
        from posenc.running.signals import report_error

        if debug and isinstance(error, UserError | RunError):
            traceback.print_exc()  # and the exit code of the error
        elif debug and isinstance(error, Exception):
            raise
        sys.exit(report_error(error, stop))
