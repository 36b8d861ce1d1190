"""The command line: one function a command. Imports are inside, so that help is instant."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from typing import Annotated, Any, TypeAlias, cast

import typer

from posenc import __version__
from posenc.config.overrides import (
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
from posenc.running import signals

app = typer.Typer(
    name="posenc",
    help="Train short, test long: compare positional encodings by how they extrapolate in length.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},  # of every command below
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
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

Text: TypeAlias = str | None
Texts: TypeAlias = list[str] | None


def option(help: str, *names: str, metavar: str | None = None, complete: Any = None) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, autocompletion=complete)


def choice(*names: str, help: str = "") -> Any:
    """Return an option whose help lists its values, which completes them and refuses others."""

    def check(param: typer.CallbackParam, value: str | None) -> str | None:
        if value is not None and value not in names:
            raise UserError(param.opts[0], value, "no such choice", allowed=names)
        return value

    listed = f"{', '.join(names[:-1])} or {names[-1]}."
    return typer.Option(help=help or listed, autocompletion=one_of(*names), callback=check)


def argument(metavar: str | None, help: str, complete: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False, autocompletion=complete)


def where(help: str) -> Any:
    return option(help, metavar="KEY=VALUE", complete=complete_where)


TAKEN = "KEY=VALUE, as in posenc train; --config-dir DIR adds YAML files of one's own."
Overrides = Annotated[Texts, argument("[OVERRIDES]...", TAKEN, complete_override)]
SAMPLED = "run=DIR; prompt=TEXT (else a test document), tokens=N (else 4T), temperature=0.8, seed=0"
Sampled = Annotated[Texts, argument("KEY=VALUE...", SAMPLED, complete_override)]
PLACES = "Run directories or folders of them; default: runs"
Dirs = Annotated[Texts, argument("[DIRS]...", PLACES, complete_run)]
MEASURES = f"How the loss was measured: {', '.join(PROTOCOLS)} or all."
Protocol = Annotated[str, option(MEASURES, complete=one_of(*PROTOCOLS, "all"))]
Json = Annotated[bool, typer.Option("--json", help="One JSON document.")]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, option("Print the version.", "--version")] = False,
    debug: Annotated[bool, option("Show tracebacks; after any command.", "--debug")] = False,
) -> None:
    if version:
        typer.echo(f"posenc {__version__}")
        raise typer.Exit


@app.command(name="train", **HYDRA)
def train_command(
    context: typer.Context,
    overrides: Overrides = None,
    dry_run: Annotated[bool, option("What it would take; writes nothing.", "--dry-run")] = False,
    retry: Annotated[bool, option("Train a run that diverged again.", "--retry")] = False,
) -> None:
    """Train, measure at longer lengths, print the table; -m sweeps. See `posenc train --help`."""
    from posenc.cli.train import run_train_or_eval

    raise typer.Exit(run_train_or_eval(*_arguments(context, overrides), dry_run=dry_run, retry=retry))


@app.command(name="eval", **HYDRA)
def eval_command(context: typer.Context, overrides: Overrides = None) -> None:
    """Measure a run again: other lengths, protocols or corpora. See `posenc eval --help`."""
    from posenc.cli.train import run_train_or_eval

    raise typer.Exit(run_train_or_eval(*_arguments(context, overrides)))


ONLY = "Only these: encoding=rope,al*  seed=0  train.lr!=0.002"
AGAINST = "Beside a paper's table, such as alibi-table2; a wrong name lists them."


@app.command(name="compare")
def compare_command(
    runs: Dirs = None,
    where: Annotated[Texts, where(ONLY)] = None,
    protocol: Protocol = "fixed-target",
    metric: Annotated[str, choice("nats", "bpb", "ppl", help="nats, bpb (bits per byte) or ppl.")] = "nats",
    format: Annotated[str, choice("table", "markdown", "csv", "latex", "json")] = "table",
    full: Annotated[bool, option("Every number with its interval; seeds, probes, notes.", "--full")] = False,
    explain: Annotated[bool, option("How to read the table.", "--explain")] = False,
    rows: Annotated[Texts, option("Only these rows, in this order: rope,alibi*")] = None,
    columns: Annotated[Texts, option("Only these lengths: 1x,8x")] = None,
    sort: Annotated[Text, option("name, 8x (the loss there), change or change@4x; -8x: falling.")] = None,
    baseline: Annotated[Text, option("Differences to this row, not to the loss at T.", metavar="ROW")] = None,
    allow_mixed: Annotated[bool, option("Runs of different settings together.", "--allow-mixed")] = False,
    recall_level: Annotated[float | None, option("Per cent within T to be ranked on recall.")] = None,
    against: Annotated[Text, option(AGAINST, metavar="TABLE", complete=complete_table)] = None,
    plot: Annotated[Text, option("A picture: .png, .svg or .pdf.", metavar="FILE")] = None,
    plot_kind: Annotated[Text, option("Default: the loss by context; a wrong name lists all.")] = None,
    html: Annotated[Text, option("One page with charts and tables.", metavar="FILE")] = None,
) -> None:
    """The comparison: rows encodings, columns lengths; from disk, nothing is measured."""
    from posenc.cli.compare import Output, listed, run_compare
    from posenc.results.comparison import CompareRequest
    from posenc.results.settings import parse_multiple

    request = CompareRequest(
        protocol=protocol,
        metric=cast("Any", metric),
        rows=listed("--rows", rows),
        columns=tuple(parse_multiple(one, "--columns") for one in listed("--columns", columns)),
        sort=sort,
        baseline=baseline,
        allow_mixed=allow_mixed,
        **({} if recall_level is None else {"recall_level": recall_level}),
    )
    output = Output(format, full, explain, against, plot, plot_kind, html)
    run_compare(runs or ["runs"], where or [], request, output)


@app.command(name="encodings")
def encodings_command(
    name: Annotated[Text, argument(None, "One encoding; all of them without.", complete_encoding)] = None,
    json: Json = False,
    plugin: Annotated[Texts, option("A module with encodings of your own.", metavar="MODULE")] = None,
) -> None:
    """The catalogue: formula, where it acts, paper, behaviour past the training length."""
    from posenc.cli.catalogue import print_catalogue

    print_catalogue(name, as_json=json, plugins=plugin or [])


@app.command(name="check", **SETTINGS)
def check_command(
    context: typer.Context,
    overrides: Overrides = None,
    every: Annotated[bool, option("Every encoding there is, as a matrix.", "--all")] = False,
    module: Annotated[Text, option("Any bias or rotary function instead.", metavar="PATH:NAME")] = None,
    json: Json = False,
) -> None:
    """Hold an encoding to the laws: `posenc check encoding=rope`. Exit 1 if one is broken."""
    from posenc.cli.check import run_check

    raise typer.Exit(run_check(_line(context, overrides), every=every, as_json=json, module=module))


@app.command(name="show", **SETTINGS)
def show_command(
    context: typer.Context,
    overrides: Overrides = None,
    out: Annotated[Text, option("Write a picture: .png, .svg or .pdf.", metavar="FILE")] = None,
) -> None:
    """Draw what an encoding does: `posenc show encoding=alibi --out alibi.png`; a trained one: run=DIR."""
    from posenc.cli.show import run_show

    run_show(_line(context, overrides), out)


@app.command(name="sample", **SETTINGS)
def sample_command(context: typer.Context, overrides: Sampled = None) -> None:
    """Continue a prompt from its last T tokens, and from all: `posenc sample run=DIR prompt="def f("`."""
    from posenc.cli.sample import run_sample

    run_sample(_arguments(context, overrides)[1])


@app.command(name="bench", **SETTINGS)
def bench_command(
    context: typer.Context,
    overrides: Overrides = None,
    eval_lengths: Annotated[Text, option("To evaluate at: 1x,8x (default 8x); none: only train.")] = None,
    repeats: Annotated[int, option("Pairs of timings for each figure.")] = 9,
    format: Annotated[str, choice("table", "markdown", "json")] = "table",
) -> None:
    """Speed and memory: `posenc bench encoding=rope,alibi context_length=64,512`. Reads no corpus."""
    from posenc.cli.bench import run_bench

    line = _line(context, overrides)
    raise typer.Exit(run_bench(line, repeats=repeats, lengths=eval_lengths, format=format))


@data_app.command(name="list")
def data_list(json: Json = False) -> None:
    """Every corpus that `data=` knows: licence, size, network needed or not, tokens cached here."""
    from posenc.cli.catalogue import print_corpora

    print_corpora(as_json=json)


@data_app.command(name="prepare", **SETTINGS)
def data_prepare(context: typer.Context, overrides: Overrides = None) -> None:
    """Fetch and tokenise ahead: `posenc data prepare data=wikitext103 tokenizer=bpe`."""
    from posenc.cli.catalogue import prepare_and_print

    prepare_and_print(_line(context, overrides))


@data_app.command(name="info", **SETTINGS)
def data_info(context: typer.Context, overrides: Overrides = None, json: Json = False) -> None:
    """Sizes, fingerprint and what lengths fit: `posenc data info data=stdlib`. Tokenises nothing."""
    from posenc.cli.catalogue import print_info

    print_info(_line(context, overrides), as_json=json)


app.add_typer(data_app, name="data")


@app.command(name="runs")
def runs_command(
    directories: Dirs = None,
    where: Annotated[Texts, where("Only runs with this setting; all of them, where several.")] = None,
    format: Annotated[str, choice("table", "json")] = "table",
    sort: Annotated[str, choice("path", "status", "age", "loss")] = "path",
) -> None:
    """What is on disk: status, progress, speed, losses, and why something failed."""
    from posenc.cli.runs import print_runs

    print_runs(directories or ["runs"], where or [], format, sort)


@app.command(name="export")
def export_command(
    directories: Dirs = None,
    out: Annotated[str, option("The bundle: NAME.runs.jsonl.gz", metavar="FILE")] = "runs.runs.jsonl.gz",
    where: Annotated[Texts, where("Only runs with this setting.")] = None,
    hf: Annotated[Text, option("One run's weights instead, for transformers.", metavar="DIR")] = None,
) -> None:
    """The results of finished runs in one small file, without weights, for `posenc compare FILE` anywhere.

    `posenc export run=RUN --hf DIR`: its weights and tokenizer as a folder that transformers loads.
    """
    runs = [one.removeprefix("run=") for one in directories or []]
    if hf is not None:
        from posenc.running.export_hf import export_hf

        if len(runs) != 1:
            raise UserError("RUNS", None, "--hf takes one run", hint="posenc export run=DIR --hf FOLDER")
        export_hf(runs[0], hf)
        return
    from posenc.cli.runs import run_export

    run_export(runs or ["runs"], where or [], out)


@app.command(name="doctor")
def doctor_command(json: Json = False) -> None:
    """Is everything there that posenc needs? Exit 1 if something stops `posenc train encoding=rope`."""
    from posenc.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(as_json=json))


@app.command(name="dashboard")
def dashboard_command(
    entity: Annotated[Text, option("User or team; default: the account's own.")] = None,
    project: Annotated[Text, option("Default: the one that runs are tracked in.")] = None,
    protocol: Annotated[str, option("Whose loss is drawn.", complete=one_of(*PROTOCOLS))] = "fixed-target",
    length: Annotated[str, option("The bars: at this multiple of T.")] = "8x",
    out: Annotated[Text, option("Write its JSON, send nothing.", metavar="FILE")] = None,
) -> None:
    """Add a view to W&B that compares encodings, and print its address."""
    from posenc.tracking.wandb import make_dashboard

    make_dashboard(entity, project, protocol, length, out)


def _arguments(context: typer.Context, overrides: list[str] | None) -> tuple[str, list[str], list[str]]:
    """Return the command's name, its arguments, and the options that it declares itself."""
    own = [name for param in context.command.params for name in param.opts if name.startswith("--")]
    return str(context.info_name), [*(overrides or []), *context.args], own


def _line(context: typer.Context, overrides: list[str] | None) -> Any:
    """Parse the overrides of a command that composes settings but runs no job of Hydra's."""
    from posenc.config.overrides import read_settings_line

    return read_settings_line(*_arguments(context, overrides))


def main(command: str | None = None) -> None:
    """Run the console script and exit; `command` is put in front for train.py and eval.py of a clone."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    signals.stop_with_parent()
    arguments = [*([command] if command else []), *sys.argv[1:]]
    if "--debug" in arguments:
        arguments = [word for word in arguments if word != "--debug"]
        os.environ[signals.DEBUG] = "1"  # for Hydra, and for the jobs of a sweep
    try:
        with signals.StopFlag() as stop:
            _run(arguments, stop)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if library_at_work():
            signals.leave_at_once(code)
        atexit.register(signals.ignore_signals)  # the last to be registered is the first to be called
        raise


def _run(arguments: list[str], stop: signals.StopFlag) -> None:
    """Run the command and exit; whatever has something to save takes the signals over, else one ends it."""
    try:
        app(arguments, prog_name="posenc")
    except (signals.InterruptedRunError, Exception) as error:
        if signals.debugging() and isinstance(error, UserError | RunError):
            traceback.print_exc()  # and the exit code of the error
        elif signals.debugging() and isinstance(error, Exception):
            raise
        elif "_POSENC_COMPLETE" in os.environ:  # at a TAB an error is of no use
            sys.exit()
        sys.exit(signals.report_error(error, stop))
