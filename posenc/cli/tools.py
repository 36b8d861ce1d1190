"""More commands of the command line: what it costs, what is on disk, what is missing, completion.

Imports are inside.
"""

from __future__ import annotations

from typing import Annotated

import typer

from posenc.evaluation import PROTOCOLS

Protocol = Annotated[str, typer.Option(help=f"How the loss was measured: {', '.join(PROTOCOLS)}.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def bench(
    context: typer.Context,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[OVERRIDES]...", show_default=False)
    ] = None,
    eval_lengths: Annotated[
        str, typer.Option(help="Evaluate at these lengths, such as 1x,8x or 512; none: only train.")
    ] = "8x",
    repeats: Annotated[int, typer.Option(help="Pairs of timings for each figure.")] = 9,
    format: Annotated[str, typer.Option(help="table, markdown, csv or json.")] = "table",
    debug: Debug = False,
) -> None:
    """Speed, memory and MFU: `posenc bench encoding=rope,alibi context_length=64,512`. Reads no corpus."""
    from posenc.cli.bench import run_bench

    code = run_bench(
        [*(overrides or []), *context.args], repeats=repeats, lengths=eval_lengths, format=format
    )
    raise typer.Exit(code)


def runs(
    directories: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DIRS]...", help="Run directories, folders of them, or globs; default: runs"),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Only runs with this setting; all of them, where several."),
    ] = None,
    format: Annotated[str, typer.Option(help="table or json.")] = "table",
    sort: Annotated[
        str, typer.Option(help="path, status, encoding, seed, age, tokens, speed, loss or longest.")
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

    code = print_runs(
        directories or ["runs"], where=where or [], format=format, sort=sort, reverse=reverse, watch=watch
    )
    raise typer.Exit(code)


def doctor(
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False, debug: Debug = False
) -> None:
    """Is everything there that posenc needs? Exit 1 if something stops `posenc train encoding=rope`."""
    from posenc.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(as_json=json))


def dashboard(
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


def completion(
    shell: Annotated[str | None, typer.Argument(help="bash, zsh or fish; default: this one.")] = None,
    install: Annotated[bool, typer.Option("--install", help="Put it where the shell finds it.")] = False,
    debug: Debug = False,
) -> None:
    """Completion of commands, settings and values at a TAB: prints the script, or installs it."""
    from posenc.cli.shells import print_completion

    print_completion(shell, install)


def export(
    directories: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DIRS]...", help="Run directories, folders of them, or globs; default: runs"),
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="FILE", help="The bundle: NAME.runs.jsonl.gz")
    ] = "runs.runs.jsonl.gz",
    where: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only runs with this setting.")
    ] = None,
    debug: Debug = False,
) -> None:
    """The results of finished runs in one small file, without weights, for `posenc compare FILE` anywhere."""
    from posenc.cli.export import run_export

    run_export(directories or ["runs"], where or [], out)
