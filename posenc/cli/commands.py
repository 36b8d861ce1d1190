"""Define the commands, one function each: parse, call, exit. Imports are inside, so that help is instant."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, cast

import typer

from posenc import __version__
from posenc.cli import compare_options
from posenc.cli.help import RootGroup
from posenc.cli.options import (
    CommandWithCaption,
    Directories,
    Json,
    OptionalText,
    OptionalTexts,
    Overrides,
    Protocol,
    SampleSettings,
    argument,
    choice,
    option,
    where_option,
)
from posenc.cli.usage import long_options
from posenc.config.completion import complete_encoding, complete_names
from posenc.config.overrides import CommandLine
from posenc.core.errors import UserError
from posenc.core.progress import starting
from posenc.evaluation.protocols import protocol_names
from posenc.running.invocation import Invocation

app = typer.Typer(
    name="posenc",
    cls=RootGroup,
    help="Train short, test long: how positional encodings extrapolate in length.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},  # for all commands
    rich_markup_mode="rich",
    # posenc words its errors itself, in posenc.running.report_error.
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(
    help="List corpora, fetch and tokenise one ahead of time, show its sizes.", no_args_is_help=True
)
app.add_typer(data_app, name="data")

# Arguments that Typer does not know are overrides: KEY=VALUE, -m, --config-dir.
TAKES_OVERRIDES: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
SETTINGS: dict[str, Any] = {"context_settings": TAKES_OVERRIDES}
# `train` and `eval` print a help of their own, with choices and settings.
OWN_HELP: dict[str, Any] = {
    "context_settings": {**TAKES_OVERRIDES, "help_option_names": []},
    "add_help_option": False,
}


# Without invoke_without_command `posenc --version` would be refused for the lack of a command.
@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, option("Print the version.", "--version")] = False,
    debug: Annotated[bool, option("Show tracebacks; may follow any command.", "--debug")] = False,
) -> None:
    if version:
        typer.echo(f"posenc {__version__}")
        raise typer.Exit


@app.command(name="train", **OWN_HELP)
def train_command(
    context: typer.Context,
    overrides: Overrides = None,
    dry_run: Annotated[bool, option("Show what it would take; write nothing.", "--dry-run")] = False,
    retry: Annotated[bool, option("Train a run that diverged again.", "--retry")] = False,
) -> None:
    """Train, measure at longer lengths, print the table; -m runs a sweep. See `posenc train --help`."""
    from posenc.cli.train import run_train_or_eval

    exit_code = run_train_or_eval(
        "train",
        _arguments(context, overrides),
        _own_flags(context),
        replace(_invocation(context), retry=retry),
        dry_run=dry_run,
    )
    raise typer.Exit(exit_code)


@app.command(name="eval", **OWN_HELP)
def eval_command(
    context: typer.Context,
    overrides: Overrides = None,
    dry_run: Annotated[bool, option("Show what it would measure; write nothing.", "--dry-run")] = False,
) -> None:
    """Measure a run again: other lengths, protocols, texts, extensions. See `posenc eval --help`."""
    from posenc.cli.train import run_train_or_eval

    exit_code = run_train_or_eval(
        "eval",
        _arguments(context, overrides),
        _own_flags(context),
        _invocation(context),
        dry_run=dry_run,
    )
    raise typer.Exit(exit_code)


@app.command(name="compare", cls=CommandWithCaption)
def compare_command(
    runs: Directories = None,
    where: compare_options.Where = None,
    protocol: Protocol = "fixed-target",
    metric: compare_options.Metric = "nats",
    format: compare_options.Format = "table",
    full: compare_options.Full = False,
    explain: compare_options.Explain = False,
    rows: compare_options.Rows = None,
    columns: compare_options.Columns = None,
    sort: compare_options.Sort = None,
    baseline: compare_options.Baseline = None,
    allow_mixed: compare_options.AllowMixed = False,
    recall_level: compare_options.RecallLevel = None,
    against: compare_options.Against = None,
    labels: compare_options.Labels = None,
    out: compare_options.Out = None,
    plot: compare_options.Plot = None,
    plot_kind: compare_options.PlotKind = None,
    size: compare_options.Size = None,
    caption: compare_options.Caption = None,
    legend: compare_options.Legend = None,
    font: compare_options.Font = None,
    html: compare_options.Html = None,
) -> None:
    """Compare runs: a row for each encoding, a column for each length. Reads the disk, measures nothing.

    Names of encodings choose among the runs: `posenc compare study rope alibi`.
    """
    from posenc.cli.compare import Output, run_compare, split_list
    from posenc.cli.compare_files import FileOptions
    from posenc.report.figure import split_labels
    from posenc.results.drafts import CompareRequest
    from posenc.results.measurements import parse_multiple

    request = CompareRequest(
        protocol=protocol,
        metric=cast("Any", metric),  # Typer gives a str; its callback has refused all but the choices
        rows=split_list("--rows", rows),
        columns=tuple(parse_multiple(text, "--columns") for text in split_list("--columns", columns)),
        sort=sort,
        baseline=baseline,
        allow_mixed=allow_mixed,
    )
    if recall_level is not None:  # its default is in CompareRequest alone
        request = replace(request, recall_level=recall_level)
    # The options go on as they were typed. What fits is checked later:
    # the kind of a picture depends on the protocol.
    files = FileOptions(
        out=tuple(out or ()),
        plot=plot,
        html=html,
        plot_kind=plot_kind,
        size=size,
        caption=caption,
        legend=legend,
        font=font,
    )
    output = Output(
        format=format,
        full=full,
        explain=explain,
        against=against,
        labels=split_labels(labels or []),
        files=files,
    )
    run_compare(runs or [], where or [], request, output)


@app.command(name="encodings")
def encodings_command(
    name: Annotated[
        OptionalText,
        argument(None, "One encoding, or the file of one; all of them without.", complete_encoding),
    ] = None,
    json: Json = False,
    plugin: Annotated[OptionalTexts, option("A module with encodings of your own.", metavar="MODULE")] = None,
) -> None:
    """List the encodings: formula, paper, behaviour past T. T is the training length."""
    from posenc.cli.encodings import print_encodings

    print_encodings(name, as_json=json, plugins=plugin or [])


@app.command(name="check", **SETTINGS)
def check_command(
    context: typer.Context,
    overrides: Overrides = None,
    all_encodings: Annotated[bool, option("Check every encoding; print a matrix.", "--all")] = False,
    module: Annotated[
        OptionalText, option("Check any bias or rotary function instead.", metavar="PATH:NAME")
    ] = None,
    json: Json = False,
) -> None:
    """Hold an encoding to the laws. `posenc check encoding=rope` exits with 1 if one is broken."""
    with starting():  # imports torch
        from posenc.cli.check import run_check

    debug = _invocation(context).debug
    line = _settings_line(context, overrides)
    exit_code = run_check(line, all_encodings=all_encodings, module=module, as_json=json, debug=debug)
    raise typer.Exit(exit_code)


@app.command(name="show", **SETTINGS)
def show_command(
    context: typer.Context,
    overrides: Overrides = None,
    out: Annotated[OptionalText, option("Write a picture: .png, .svg or .pdf.", metavar="FILE")] = None,
) -> None:
    """Draw what an encoding does. `posenc show encoding=alibi --out alibi.png`; of a trained run: run=DIR."""
    with starting():  # imports torch
        from posenc.cli.show import run_show

    run_show(_settings_line(context, overrides), out)


@app.command(name="sample", **SETTINGS)
def sample_command(context: typer.Context, overrides: SampleSettings = None) -> None:
    """Continue a prompt from its last T tokens, and from all. `posenc sample run=DIR prompt="def f("`."""
    with starting():  # imports torch
        from posenc.cli.sample import run_sample

    run_sample(_arguments(context, overrides))


@app.command(name="bench", **SETTINGS)
def bench_command(
    context: typer.Context,
    overrides: Overrides = None,
    eval_lengths: Annotated[str, option("Lengths to evaluate at: 1x,8x; none: only train.")] = "8x",
    repeats: Annotated[int, option("Pairs of timings for each figure.")] = 9,
    format: Annotated[str, choice("table", "markdown", "json")] = "table",
) -> None:
    """Measure speed and memory. `posenc bench encoding=rope,alibi context_length=64,512` reads no corpus."""
    with starting():  # imports torch
        from posenc.cli.bench import run_bench

    line = _settings_line(context, overrides)
    raise typer.Exit(run_bench(line, repeats=repeats, lengths=eval_lengths, format=format))


@data_app.command(name="list")
def data_list_command(json: Json = False) -> None:
    """List the corpora that `data=` takes: licence, size, need of a network, tokens cached here."""
    from posenc.cli.data import print_corpora

    print_corpora(as_json=json)


@data_app.command(name="prepare", **SETTINGS)
def data_prepare_command(context: typer.Context, overrides: Overrides = None) -> None:
    """Fetch and tokenise ahead of time: `posenc data prepare data=wikitext103 tokenizer=bpe`."""
    from posenc.cli.data import prepare_corpus

    prepare_corpus(_settings_line(context, overrides))


@data_app.command(name="info", **SETTINGS)
def data_info_command(context: typer.Context, overrides: Overrides = None, json: Json = False) -> None:
    """Show sizes, fingerprint and the lengths that fit: `posenc data info data=stdlib`. Tokenises nothing."""
    from posenc.cli.data import print_info

    print_info(_settings_line(context, overrides), as_json=json)


@app.command(name="runs")
def runs_command(
    directories: Directories = None,
    where: Annotated[
        OptionalTexts, where_option("Only runs with this setting; several must all hold.")
    ] = None,
    format: Annotated[str, choice("table", "json")] = "table",
    sort: Annotated[str, choice("path", "status", "age", "loss")] = "path",
    columns: Annotated[
        OptionalTexts, option("Only these columns, or settings: run,tokens,train.lr", metavar="NAMES")
    ] = None,
    delete: Annotated[
        OptionalTexts, option("Delete a run, after a question; its name, path or a glob.", metavar="NAME")
    ] = None,
    yes: Annotated[bool, option("Delete without the question.", "--yes")] = False,
) -> None:
    """List the runs on disk: status, progress, losses, why one failed. --delete removes one."""
    # The import stands here, as in each command: `--help` imports nothing heavy (tests/cli/test_commands.py).
    from posenc.cli.compare import split_list

    arguments = directories or []
    conditions = where or []
    # A deletion prints no list, and an option without effect is refused everywhere.
    if delete:
        if columns or format != "table" or sort != "path":
            raise UserError("--delete", None, "has no list: --columns, --format and --sort are for one")
        from posenc.cli.delete_runs import delete_runs

        raise typer.Exit(delete_runs(arguments, conditions, split_list("--delete", delete), yes=yes))
    # A script that forgets --delete must not end with 0.
    if yes:
        raise UserError("--yes", None, "is the answer to --delete", hint="posenc runs --delete NAME --yes")
    from posenc.cli.runs import print_runs

    chosen_columns = split_list("--columns", columns)
    print_runs(arguments, conditions, as_json=format == "json", sort=sort, columns=chosen_columns)


@app.command(name="export")
def export_command(
    directories: Directories = None,
    out: Annotated[
        OptionalText, option("The bundle: NAME.runs.jsonl.gz; default: runs.runs.jsonl.gz", metavar="FILE")
    ] = None,
    where: Annotated[OptionalTexts, where_option("Only runs with this setting.")] = None,
    hf: Annotated[
        OptionalText, option("Write the weights of one run instead, for transformers.", metavar="DIR")
    ] = None,
) -> None:
    """Write the results of finished runs into one small file. `posenc compare FILE` reads it; no weights.

    `posenc export run=RUN --hf DIR` writes its weights and tokenizer as a folder that transformers loads.
    """
    from posenc.cli.export import run_export

    run_export(directories or [], where or [], out=out, hf=hf)


@app.command(name="doctor")
def doctor_command(json: Json = False) -> None:
    """Check that all is there that posenc needs. Exit 1 if something stops `posenc train encoding=rope`."""
    from posenc.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(as_json=json))


@app.command(name="dashboard")
def dashboard_command(
    entity: Annotated[OptionalText, option("User or team; default: the account's own.")] = None,
    project: Annotated[OptionalText, option("Default: the project that runs are tracked in.")] = None,
    protocol: Annotated[
        str, option("Whose loss is drawn.", complete=complete_names(*protocol_names()))
    ] = "fixed-target",
    length: Annotated[str, option("Draw the bars at this multiple of T.")] = "8x",
    out: Annotated[OptionalText, option("Write its JSON; send nothing.", metavar="FILE")] = None,
) -> None:
    """Add a view to W&B that compares encodings, and print its address."""
    from posenc.tracking.dashboard import make_dashboard

    make_dashboard(entity, project, protocol, length, out)


# What the command line may begin with.
COMMANDS = [
    *(str(command.name) for command in app.registered_commands),
    *(str(group.name) for group in app.registered_groups),
]
ROOT_OPTIONS = ["--version", "--debug", "--help", "-h", "--install-completion", "--show-completion"]


def _invocation(context: typer.Context) -> Invocation:
    """Return how the process was started; read here where the app is called without `main`, as in tests."""
    invocation = context.obj
    return invocation if isinstance(invocation, Invocation) else Invocation.read()


def _arguments(context: typer.Context, overrides: list[str] | None) -> list[str]:
    """Return the words that are not options of the command itself."""
    return [*(overrides or []), *context.args]


def _own_flags(context: typer.Context) -> list[str]:
    """Return the options that the command declares."""
    # Typer has taken them from the line already. The parser of overrides names them among what is allowed.
    return long_options(context.command)


def _settings_line(context: typer.Context, overrides: list[str] | None) -> CommandLine:
    """Parse the overrides of a command that composes settings but runs no job of Hydra's."""
    from posenc.config.overrides import read_settings_line

    return read_settings_line(str(context.info_name), _arguments(context, overrides), _own_flags(context))
